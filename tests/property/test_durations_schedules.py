"""Durations, schedules, policies: texts read back, delays keep their bounds, decisions are monotone."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.classify import DeadReason, Failure
from retryapp.core.decide import Dead, RetryAt, decide
from retryapp.core.durations import MAX_DURATION_MS, format_duration_ms, parse_duration_ms
from retryapp.core.errors import ConfigurationError, InvalidDurationError
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import ErrorClass, non_retryable, retryable
from retryapp.core.schedule import Exponential, Sequence, parse_schedule
from retryapp.core.verdicts import RetryLater

lengths = st.integers(1, MAX_DURATION_MS)
rngs = st.floats(0, 1, exclude_max=True)
sequences = st.lists(lengths, min_size=1, max_size=30).map(lambda delays: Sequence(tuple(delays)))


@st.composite
def exponentials(draw: st.DrawFn) -> Exponential:
    """Draw an exponential schedule with a cap, so that it never grows out of range."""
    cap = draw(lengths)
    return Exponential(
        initial_delay_ms=draw(st.integers(1, cap)),
        multiplier=draw(st.floats(1, 1_000)),
        max_delay_ms=cap,
        jitter=draw(st.floats(0, 1)),
        count=draw(st.integers(1, 60)),
    )


schedules = st.one_of(sequences, exponentials())
rules = st.lists(
    st.sampled_from([retryable(OSError), non_retryable(ValueError, KeyError), non_retryable(RetryLater)]), max_size=3
)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    elapsed = draw(st.none() | lengths)
    return RetryPolicy(
        draw(schedules),
        max_elapsed=None if elapsed is None else timedelta(milliseconds=elapsed),
        on=draw(rules),
        timeout=timedelta(milliseconds=draw(lengths)),
    )


def failure(*, retry_after_ms: int | None = None, reason: DeadReason | None = None) -> Failure:
    return Failure(
        error_type="E",
        message="",
        error_class=ErrorClass.RETRYABLE if reason is None else ErrorClass.NON_RETRYABLE,
        reason_if_dead=reason,
        retry_after_ms=retry_after_ms,
        fingerprint="f",
    )


@given(st.text(max_size=12) | st.from_regex(r"\A-?[0-9]{0,3}\.?[0-9]{0,3}[a-z]{0,2}\s?[0-9a-z]{0,4}\Z"))
def test_any_text_is_a_length_in_range_or_is_refused_by_name(text: str) -> None:
    """No text makes a length out of range or an unnamed error."""
    try:
        length, refusal = parse_duration_ms(text), None
    except InvalidDurationError as error:
        length, refusal = 0, str(error)
    if refusal is None:
        assert 1 <= length <= MAX_DURATION_MS
        assert parse_duration_ms(format_duration_ms(length)) == length
    else:
        assert repr(text)[:50] in refusal


@given(st.text(max_size=30) | st.from_regex(r"\A(forever|exp)?\(?[0-9]{1,3}[smhd]?[,*x =.0-9a-z]{0,20}\)?\Z"))
def test_any_text_is_a_schedule_or_is_refused_by_name(text: str) -> None:
    """No text makes an invalid schedule or an unnamed error."""
    try:
        schedule = parse_schedule(text)
    except ConfigurationError:
        return
    assert parse_schedule(schedule.text) == schedule


@given(exponentials(), rngs)
def test_a_cap_holds_and_delays_never_shrink(schedule: Exponential, rng: float) -> None:
    """Exponential delays rise up to the cap, also after jitter, and are shortened by at most the jitter's share."""
    nominal = schedule.all_nominal_ms
    assert list(nominal) == sorted(nominal)
    assert schedule.max_delay_ms is not None
    for attempt, full in enumerate(nominal, 1):
        delay = schedule.delay_ms(attempt, rng)
        assert 1 <= delay <= full <= schedule.max_delay_ms
        assert delay >= full - full * schedule.jitter - 1


@given(
    policies(),
    st.integers(1, 100),
    st.integers(0, 10**13),
    st.integers(0, 10**12),
    st.none() | st.integers(0, MAX_DURATION_MS),
    rngs,
)
def test_a_decision_keeps_the_policys_bounds(
    policy: RetryPolicy, attempt: int, first_failed_ms: int, passed_ms: int, asked: int | None, rng: float
) -> None:
    """Never before now, never past the deadline, never more attempts than the policy has."""
    now_ms = first_failed_ms + passed_ms
    decision = decide(
        policy,
        attempt=attempt,
        first_failed_ms=first_failed_ms,
        failure=failure(retry_after_ms=asked),
        now_ms=now_ms,
        rng=rng,
    )
    if attempt >= policy.max_attempts:
        assert decision == Dead(DeadReason.EXHAUSTED)
    elif isinstance(decision, RetryAt):
        assert decision.due_at_ms == now_ms + decision.delay_ms
        assert decision.delay_ms >= (0 if asked is None else asked)
        assert parse_duration_ms(decision.tier) in policy.schedule.nominal_delays_ms
        if policy.max_elapsed_ms is not None:
            assert decision.due_at_ms <= first_failed_ms + policy.max_elapsed_ms
    else:
        assert decision == Dead(DeadReason.EXPIRED)
        assert policy.max_elapsed_ms is not None

"""Schedules as text and as constructors."""

from __future__ import annotations

import pytest

from retryapp.core.errors import InvalidDurationError, InvalidPolicyError
from retryapp.core.metadata import MAX_COUNT
from retryapp.core.schedule import Schedule, exp, forever, parse_schedule, sequence

MINUTE = 60_000


@pytest.mark.parametrize(
    ("text", "made", "delays"),
    [
        (
            "5m*2 30m*3 1h",
            sequence("5m", "5m", "30m", "30m", "30m", "1h"),
            (5 * MINUTE, 5 * MINUTE, 30 * MINUTE, 30 * MINUTE, 30 * MINUTE, 60 * MINUTE),
        ),
        ("1s", sequence("1s"), (1_000,)),
        ("30s*5", sequence(*["30s"] * 5), (30_000,) * 5),
        (
            "exp(1s, x2, cap=10m, jitter=0.2, 8)",
            exp("1s", multiplier=2, cap="10m", jitter=0.2, retries=8),
            (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000),
        ),
        ("exp(1s, x3, cap=5s, 4)", exp("1s", multiplier=3, cap="5s", retries=4), (1_000, 3_000, 5_000, 5_000)),
        ("exp(1s, x1.5, 3)", exp("1s", multiplier=1.5, retries=3), (1_000, 1_500, 2_250)),
        ("forever(10s)", forever("10s"), (10_000,)),
    ],
)
def test_text_and_constructor_make_the_same_schedule(text: str, made: Schedule, delays: tuple[int, ...]) -> None:
    """Each kind reads back from its text and has the delays that it says."""
    assert parse_schedule(text) == made
    assert made.text == text
    assert made.all_nominal_ms == delays
    assert made.retries == len(delays)
    assert made.nominal_delays_ms == tuple(sorted(set(delays)))
    assert [made.nominal_ms(attempt) for attempt in range(1, made.retries + 1)] == list(delays)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("300s 5m 30m", "5m*2 30m"),
        ("5m*1   5m*2", "5m*3"),
        ("forever( 60s )", "forever(1m)"),
        ("exp(1s, 8)", "exp(1s, x2, 8)"),
        ("exp(1s,jitter=0.50,cap=600s,x2.0,8)", "exp(1s, x2, cap=10m, jitter=0.5, 8)"),
        ("exp(1s, jitter=0, 8)", "exp(1s, x2, 8)"),
    ],
)
def test_other_spellings_have_one_canonical_text(written: str, canonical: str) -> None:
    """Spaces, order and units do not matter."""
    assert parse_schedule(written).text == canonical


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no delay"), ("  ", "no delay"), ("5", "no unit"), ("5m, 30m", "5m,"), ("5m*0", "retries=0"),
        ("5m*", "5m*"), ("*3", "*3"), ("5m*2000", "2000"), ("5m*600 1h*600", "1200"), ("5m*-1", "5m*-1"),
        ("exp(1s)", "number of retries"), ("exp(1s, x2)", "number of retries"), ("exp(1s, y2, 5)", "y2"),
        ("exp(1s, x2, x3, 5)", "x3"), ("exp(1s, xtwo, 5)", "two"), ("exp(1s, x0.5, 5)", "multiplier=0.5"),
        ("exp(1s, x2, jitter=1.5, 5)", "jitter=1.5"), ("exp(1s, x2, jitter=-0.1, 5)", "-0.1"),
        ("exp(1m, x2, cap=1s, 5)", "below the first delay"), ("exp(1s, x2, cap=10, 5)", "no unit"),
        ("exp(1d, x2, 100)", "ten years"), ("forever()", "is empty"), ("forever(10)", "no unit"),
        ("forever(1s, 5)", "1s, 5"), ("forever(1s) 5m", "forever(1s)"), ("linear(1s, 5)", "linear(1s,"),
        ("Exp(1s, 5)", "Exp"), ("5m; max_elapsed=1d", "RetryPolicy.parse"),
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused_with_the_part_that_is_wrong(text: str, named: str) -> None:
    """The error quotes the whole schedule and the part."""
    with pytest.raises(InvalidPolicyError) as caught:
        parse_schedule(text)
    assert caught.value.field == "schedule"
    assert named in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("given", [["5m", "10m"], 300, None])
def test_what_is_no_text_is_told_what_a_schedule_is(given: object) -> None:
    """It was said to have no delay."""
    with pytest.raises(InvalidPolicyError, match=r"a schedule is text, .* as '300s' or '5m 10m'") as caught:
        parse_schedule(given)  # type: ignore[arg-type]
    assert caught.value.value == given


def test_jitter_shortens_by_its_share() -> None:
    """At jitter 0.2 the shortest delay is 80 % of the nominal one."""
    schedule = exp("10s", jitter=0.2, retries=3)
    assert schedule.delay_ms(1, 0.0) == 10_000
    assert schedule.delay_ms(1, 0.5) == 9_000
    assert schedule.delay_ms(2, 0.999999) == 16_001


@pytest.mark.parametrize(
    ("attempt", "rng", "named"),
    [(0, 0.5, "attempt=0"), (-1, 0.5, "attempt=-1"), (3, 0.5, "attempt=3"),
     (1, -0.1, "rng=-0.1"), (1, 1.0, "rng=1.0"), (1, float("nan"), "rng=nan")],
)  # fmt: skip
def test_there_is_no_delay_beyond_the_schedule_or_its_jitter(attempt: int, rng: float, named: str) -> None:
    """A programming error, not a guess; a random number outside [0, 1) would lengthen a delay."""
    with pytest.raises(ValueError, match=named):
        sequence("1s", "1s").delay_ms(attempt, rng)


def test_a_constructor_refuses_what_is_no_duration() -> None:
    """Durations are checked where they are given."""
    with pytest.raises(InvalidDurationError):
        sequence("30")
    with pytest.raises(InvalidPolicyError, match="jitter="):
        exp("1s", jitter=float("nan"), retries=2)
    with pytest.raises(InvalidPolicyError, match="multiplier="):
        exp("1s", multiplier=10**400, retries=2)


def test_a_delay_without_end_follows_every_attempt() -> None:
    """Of any number; a list of delays ends."""
    assert [forever("10s").delay_ms(attempt, 0.5) for attempt in (1, 2, MAX_COUNT + 1)] == [10_000] * 3
    assert not forever("10s").follows(0)
    assert [sequence("10s", "10s").follows(attempt) for attempt in (0, 1, 2, 3)] == [False, True, True, False]

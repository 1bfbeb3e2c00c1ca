"""The one decision: after a failed attempt, when again, or why not. No other code compares attempts or deadlines.

The first answer wins:

1. The record needs no handling: skipped.
2. Nothing can succeed before somebody has acted: again as soon as the partition, which is paused, goes on.
3. The failure itself is final (non-retryable, rejected, undecodable): dead.
4. The attempts, or the delays of the schedule that applies, are used up: dead, ``exhausted``. Never if it is endless.
5. The next wait would end after ``max_elapsed`` from the first failure: dead, ``expired``, without waiting.
6. Else again: at now plus the schedule's jittered delay, or plus the wait that the handler asked for.

A rule may have a schedule of its own; it goes by the failures in a row under that rule, as the policy's goes by
those in a row under no such rule. ``max_attempts`` bounds them together, so causes that take turns end, too.
"""

from __future__ import annotations

from retryapp.core.classify import DeadReason, Failure
from retryapp.core.durations import format_duration_ms
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import ErrorClass
from retryapp.core.schedule import Schedule
from retryapp.core.values import value_type


@value_type
class RetryAt:
    """Deliver again, not before ``due_at_ms``."""

    due_at_ms: int
    delay_ms: int
    tier: str
    """Text of the schedule's delay that is nearest: for people and metrics."""


@value_type
class Dead:
    """Never again by itself: dead letter."""

    reason: DeadReason
    dead_letters: str | None = None
    """Name of the dead-letter topic; None: the usual one."""


@value_type
class SkipNow:
    """Never again: the record needs no handling."""


Decision = RetryAt | Dead | SkipNow


def decide(
    policy: RetryPolicy,
    *,
    attempt: int,
    failures: int | None = None,
    first_failed_ms: int,
    failure: Failure,
    now_ms: int,
    rng: float,
) -> Decision:
    """Decide what becomes of a record whose delivery has failed.

    Args:
        policy: the present one.
        attempt: number of the attempt that has failed.
        failures: how many in a row under the schedule that applies (`hops.failures_in_a_row`); None: all of them.
        first_failed_ms: from when ``max_elapsed`` counts.
        failure: what has failed.
        now_ms: when it has.
        rng: a random number from [0, 1).
    """
    if attempt < 1:
        raise ValueError(f"attempt={attempt}: the first delivery is attempt 1")
    if failure.error_class is ErrorClass.SKIPPABLE:
        return SkipNow()
    if failure.error_class is ErrorClass.PAUSING:
        return for_free(policy, wait_ms=1, now_ms=now_ms)  # its due time is that of no earlier delivery
    rule, failures = failure.rule, attempt if failures is None else failures
    if failure.reason_if_dead is not None:
        return Dead(failure.reason_if_dead, None if rule is None else rule.dead_letters)
    schedule = policy.schedule if rule is None or rule.schedule is None else rule.schedule
    if not schedule.follows(failures) or (policy.max_attempts is not None and attempt >= policy.max_attempts):
        return Dead(DeadReason.EXHAUSTED)
    asked = failure.retry_after_ms
    delay_ms = schedule.delay_ms(failures, rng) if asked is None else asked
    due_at_ms = now_ms + delay_ms
    deadline_ms = MAX_EPOCH_MS if policy.max_elapsed_ms is None else first_failed_ms + policy.max_elapsed_ms
    if due_at_ms > min(deadline_ms, MAX_EPOCH_MS):
        return Dead(DeadReason.EXPIRED)
    nominal_ms = schedule.nominal_ms(failures) if asked is None else _nearest(schedule, asked)
    return RetryAt(due_at_ms, delay_ms, format_duration_ms(nominal_ms))


def for_free(policy: RetryPolicy, *, wait_ms: int, now_ms: int) -> RetryAt:
    """Return when a record comes again whose failure spent no attempt: attempts and deadline are not looked at."""
    due_at_ms = min(now_ms + wait_ms, MAX_EPOCH_MS)
    return RetryAt(due_at_ms, wait_ms, format_duration_ms(_nearest(policy.schedule, wait_ms)))


def _nearest(schedule: Schedule, delay_ms: int) -> int:
    return min(schedule.nominal_delays_ms, key=lambda nominal_ms: (abs(nominal_ms - delay_ms), nominal_ms))

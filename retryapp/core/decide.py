"""The one decision: after a failed attempt, when again, or why not. No other code compares attempts or deadlines.

The first answer wins:

1. The failure itself is final (non-retryable, rejected, undecodable): dead.
2. The attempts are used up: dead, ``exhausted``.
3. The next wait would end after ``max_elapsed`` from the first failure: dead, ``expired``, without waiting.
4. Else again: at now plus the schedule's jittered delay, or plus the wait that the handler asked for.
"""

from __future__ import annotations

from retryapp.core.classify import DeadReason, Failure
from retryapp.core.durations import format_duration_ms
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.policy import RetryPolicy
from retryapp.core.values import value_type

__all__ = ["Dead", "DeadReason", "Decision", "RetryAt", "decide"]


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


Decision = RetryAt | Dead


def decide(
    policy: RetryPolicy, *, attempt: int, first_failed_ms: int, failure: Failure, now_ms: int, rng: float
) -> Decision:
    """Decide what becomes of a record whose delivery has failed; `rng` is a random number from [0, 1)."""
    if attempt < 1:
        raise ValueError(f"attempt={attempt}: the first delivery is attempt 1")
    if failure.reason_if_dead is not None:
        return Dead(failure.reason_if_dead)
    if attempt >= policy.max_attempts:
        return Dead(DeadReason.EXHAUSTED)
    asked = failure.retry_after_ms
    delay_ms = policy.schedule.delay_ms(attempt, rng) if asked is None else asked
    due_at_ms = now_ms + delay_ms
    deadline_ms = MAX_EPOCH_MS if policy.max_elapsed_ms is None else first_failed_ms + policy.max_elapsed_ms
    if due_at_ms > min(deadline_ms, MAX_EPOCH_MS):
        return Dead(DeadReason.EXPIRED)
    nominal_ms = policy.schedule.nominal_ms(attempt) if asked is None else _nearest(policy, asked)
    return RetryAt(due_at_ms, delay_ms, format_duration_ms(nominal_ms))


def _nearest(policy: RetryPolicy, delay_ms: int) -> int:
    return min(policy.schedule.nominal_delays_ms, key=lambda nominal_ms: (abs(nominal_ms - delay_ms), nominal_ms))

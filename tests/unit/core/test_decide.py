"""The one decision, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from retryapp.core.classify import DeadReason, classify
from retryapp.core.decide import Dead, Decision, RetryAt, SkipNow, decide
from retryapp.core.metadata import MAX_COUNT, MAX_EPOCH_MS
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import non_retryable, retryable, skippable
from retryapp.core.verdicts import Reject, RetryLater, Skip

POLICY = RetryPolicy("5s 30s", max_elapsed="1m", on=[non_retryable(ValueError)])


def decided(policy: RetryPolicy, error: Exception, **facts: Any) -> Decision:
    """Decide about a record that failed first at 0 ms, now unless it is said; its first delivery has failed."""
    failure = classify(error, policy.on)
    return decide(policy, **{"attempt": 1, "first_failed_ms": 0, "now_ms": 0, "rng": 0.5, **facts}, failure=failure)


@pytest.mark.parametrize(
    ("attempt", "now_ms", "error", "expected"),
    [
        (1, 0, OSError(), RetryAt(5_000, 5_000, "5s")), (2, 6_000, OSError(), RetryAt(36_000, 30_000, "30s")),
        (3, 40_000, OSError(), Dead(DeadReason.EXHAUSTED)), (9, 40_000, OSError(), Dead(DeadReason.EXHAUSTED)),
        (2, 30_000, OSError(), RetryAt(60_000, 30_000, "30s")), (2, 30_001, OSError(), Dead(DeadReason.EXPIRED)),
        (1, 0, ValueError(), Dead(DeadReason.NON_RETRYABLE)),
        (3, 90_000, ValueError(), Dead(DeadReason.NON_RETRYABLE)),
        (3, 90_000, Reject("no"), Dead(DeadReason.REJECTED)), (3, 90_000, OSError(), Dead(DeadReason.EXHAUSTED)),
        (1, 0, RetryLater(20), RetryAt(20_000, 20_000, "30s")), (1, 0, RetryLater(0), RetryAt(0, 0, "5s")),
        (1, 0, RetryLater("1m"), RetryAt(60_000, 60_000, "30s")),
        (1, 0, RetryLater("61s"), Dead(DeadReason.EXPIRED)), (3, 0, RetryLater(1), Dead(DeadReason.EXHAUSTED)),
    ],
)  # fmt: skip
def test_decisions(attempt: int, now_ms: int, error: Exception, expected: RetryAt | Dead) -> None:
    """Final failures first, then attempts, then the deadline, then the wait."""
    assert decided(POLICY, error, attempt=attempt, now_ms=now_ms) == expected


def test_a_due_time_past_the_end_of_dates_is_expired() -> None:
    """No due time is made that a header could not hold."""
    assert decided(RetryPolicy("1d"), OSError(), now_ms=MAX_EPOCH_MS) == Dead(DeadReason.EXPIRED)


def test_the_first_delivery_is_attempt_1() -> None:
    """A count from 0 is a mix-up, not a policy question."""
    with pytest.raises(ValueError, match="attempt=0"):
        decided(POLICY, OSError(), attempt=0)


def test_a_rule_has_a_schedule_of_its_own() -> None:
    """It goes by the failures in a row, and the attempts bound it; the policy's schedule likewise."""
    busy = retryable(TimeoutError, schedule="1s 2s 3s")
    policy = RetryPolicy("1m*2", on=busy, max_attempts=5)
    dead = Dead(DeadReason.EXHAUSTED)
    assert decided(policy, TimeoutError(), attempt=4, failures=2) == RetryAt(2_000, 2_000, "2s")
    assert decided(policy, OSError(), attempt=4, failures=2) == RetryAt(60_000, 60_000, "1m")
    assert decided(policy, TimeoutError(), attempt=4, failures=4) == dead, "its schedule has three delays"
    assert decided(policy, OSError(), attempt=3, failures=3) == dead, "the policy's has two"
    assert decided(policy, TimeoutError(), attempt=5, failures=1) == dead, "causes that take turns end"


def test_a_rule_names_the_dead_letter_topic_and_skips() -> None:
    """Only where it is the rule that decides."""
    policy = RetryPolicy("1m", on=[non_retryable(ValueError, dead_letters="invalid"), skippable(KeyError)])
    assert decided(policy, ValueError()) == Dead(DeadReason.NON_RETRYABLE, "invalid")
    assert decided(policy, Reject("no")) == Dead(DeadReason.REJECTED)
    assert decided(policy, OSError(), attempt=2) == Dead(DeadReason.EXHAUSTED)
    assert decided(policy, KeyError(), attempt=9) == SkipNow()
    assert decided(policy, Skip("old")) == SkipNow()


def test_without_end_only_time_and_verdicts_end_it() -> None:
    """Whatever the attempt; a rule's own list of delays ends beside it."""
    busy = retryable(TimeoutError, schedule="1s")
    policy = RetryPolicy("forever(10s)", max_elapsed="1d", on=[busy, non_retryable(ValueError)])
    last = {"attempt": MAX_COUNT, "failures": MAX_COUNT}
    assert decided(policy, OSError(), **last) == RetryAt(10_000, 10_000, "10s")
    assert decided(policy, OSError(), **last, now_ms=86_400_000) == Dead(DeadReason.EXPIRED)
    assert decided(policy, ValueError(), **last) == Dead(DeadReason.NON_RETRYABLE)
    assert decided(policy, TimeoutError(), attempt=MAX_COUNT, failures=1) == RetryAt(1_000, 1_000, "1s")
    assert decided(policy, TimeoutError(), attempt=MAX_COUNT, failures=2) == Dead(DeadReason.EXHAUSTED)

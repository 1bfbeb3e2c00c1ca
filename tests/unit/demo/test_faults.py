"""The plan by which the service fails."""

from collections import Counter

from retryapp.demo.faults import MAX_PLANNED, SHARE, planned_failures, planned_fault
from retryapp.demo.visits import Outcome

FLIGHTS = range(1, 20_001)


def test_a_small_share_fails_one_to_three_times() -> None:
    """About the stated share fails, at its first attempts without a gap, and never more often than stated."""
    counts = Counter(planned_failures(flight) for flight in FLIGHTS)
    assert set(counts) == {0, 1, 2, MAX_PLANNED}
    assert abs(1 - counts[0] / len(FLIGHTS) - SHARE) < 0.01
    for flight in range(1, 300):
        failing = [attempt for attempt in range(1, 8) if planned_fault(flight, attempt) is not None]
        assert failing == list(range(1, planned_failures(flight) + 1))


def test_all_kinds_of_failure_are_met() -> None:
    """Every kind appears, and only a 503 carries seconds to wait."""
    faults = [fault for flight in FLIGHTS if (fault := planned_fault(flight, 1)) is not None]
    assert {fault.outcome for fault in faults} == {Outcome.UNAVAILABLE, Outcome.TIMEOUT, Outcome.RESET}
    assert {fault.retry_after_s for fault in faults if fault.outcome is Outcome.UNAVAILABLE} == {1, 2, 3}
    assert {fault.retry_after_s for fault in faults if fault.outcome is not Outcome.UNAVAILABLE} == {0}

"""The plan by which the service fails."""

from collections import Counter

import pytest

from retryapp.demo.faults import MAX_PLANNED, FaultKind, FaultPlan, Outage

FLIGHTS = range(1, 20_001)


def test_a_plan_depends_on_nothing_but_its_seed() -> None:
    """Two plans of one seed agree on every attempt; another seed differs."""
    plan, again, other = FaultPlan(seed=1), FaultPlan(seed=1), FaultPlan(seed=2)
    cases = [(flight, attempt) for flight in range(1, 500) for attempt in range(1, 5)]
    assert [plan.fault(*case) for case in cases] == [again.fault(*case) for case in cases]
    assert [plan.fault(*case) for case in cases] != [other.fault(*case) for case in cases]


def test_a_small_share_fails_one_to_three_times() -> None:
    """About the stated share fails, at its first attempts without a gap, and never more often than stated."""
    plan = FaultPlan(seed=1, share=0.15)
    counts = Counter(plan.failures(flight) for flight in FLIGHTS)
    assert set(counts) == {0, 1, 2, MAX_PLANNED}
    assert 0.14 < 1 - counts[0] / len(FLIGHTS) < 0.16
    for flight in range(1, 300):
        failing = [attempt for attempt in range(1, 8) if plan.fault(flight, attempt) is not None]
        assert failing == list(range(1, plan.failures(flight) + 1))


def test_all_kinds_of_failure_are_met() -> None:
    """Every kind appears, and only a 503 carries seconds to wait."""
    plan = FaultPlan(seed=1)
    faults = [fault for flight in FLIGHTS if (fault := plan.fault(flight, 1)) is not None]
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.retry_after_s for fault in faults if fault.kind is FaultKind.UNAVAILABLE} == {1, 2, 3}
    assert {fault.retry_after_s for fault in faults if fault.kind is not FaultKind.UNAVAILABLE} == {None}


@pytest.mark.parametrize("seconds", [2.0, 5.0, 8.0])
def test_an_outage_costs_a_flight_two_attempts_at_most(seconds: float) -> None:
    """The answer in an outage asks for half of its length or more, so the third request comes after it."""
    plan = FaultPlan(seed=1)
    assert min(plan.outage_retry_after_s(flight, seconds) for flight in range(1, 500)) * 2 >= seconds


def test_an_outage_begins_with_a_request_and_ends_with_time() -> None:
    """From the stated request on all requests are covered, until the stated seconds have passed."""
    outage = Outage(after_requests=3, after_s=None, seconds=5.0)
    assert outage.state(0.0) == "ahead"
    assert [outage.covers(requests=number, now_s=float(number)) for number in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]
    assert outage.state(7.9) == "on"
    assert outage.covers(requests=5, now_s=8.0) is False
    assert outage.state(8.0) == "over"


def test_an_outage_can_begin_with_time() -> None:
    """The seconds count from the first request."""
    outage = Outage(after_requests=None, after_s=10.0, seconds=1.0)
    assert [outage.covers(requests=1, now_s=now) for now in (100.0, 109.9, 110.0, 111.0)] == [False, False, True, False]


def test_without_a_start_there_is_no_outage() -> None:
    """An outage without a start never begins."""
    outage = Outage(after_requests=None, after_s=None, seconds=5.0)
    assert outage.covers(requests=10**6, now_s=10**6) is False
    assert outage.state(10**6) == "none"


def test_shares_out_of_range_are_refused() -> None:
    """A share above one is no share."""
    with pytest.raises(ValueError, match=r"share=1\.5"):
        FaultPlan(seed=1, share=1.5)

"""Percentiles and healthy latency."""

from retryapp.demo.figures import healthy_ms, lateness_ms, pause_after, quantiles, waiting_at
from retryapp.demo.visits import Outcome, Visit


def visit(flight_id: int, outcome: Outcome, *, at: int, attempt: int = 1, due: int | None = None) -> Visit:
    """Make a visit without length."""
    return Visit(
        flight_id=flight_id,
        attempt=attempt,
        failure_id=None,
        due_at_ms=due,
        started_ms=at,
        ended_ms=at,
        outcome=outcome,
    )


def test_quantiles_are_nearest_ranks() -> None:
    """Every quantile is one of the measurements; none of nothing is zero."""
    assert (quantiles(range(1, 101)).p50, quantiles(range(1, 101)).p99, quantiles(range(1, 101)).max) == (50, 99, 100)
    assert (quantiles([7]).p50, quantiles([7]).p99) == (7, 7)
    assert quantiles([]).count == 0


def test_lateness_counts_the_first_run_of_each_attempt() -> None:
    """A repeated run is late by the failover, not by the retry; deliveries without a due time have no lateness."""
    visits = [
        visit(1, Outcome.RESET, at=0),
        visit(1, Outcome.DONE, at=9_000, attempt=2, due=1_000),
        visit(1, Outcome.DONE, at=1_003, attempt=2, due=1_000),
    ]
    assert lateness_ms(visits) == [3]


def test_what_was_due_in_a_pause_is_late_by_the_failover() -> None:
    """Left out where the lateness outside failovers is asked for."""
    visits = [
        visit(1, Outcome.DONE, at=1_003, attempt=2, due=1_000),
        visit(2, Outcome.DONE, at=9_000, attempt=2, due=2_000),
    ]
    assert sorted(lateness_ms(visits)) == [3, 7_000]
    assert lateness_ms(visits, pauses=[(1_500, 8_000)]) == [3]


def test_a_flight_waits_between_a_failure_and_its_next_visit() -> None:
    """Final outcomes wait for nothing."""
    visits = [
        visit(1, Outcome.RESET, at=10),
        visit(2, Outcome.UNAVAILABLE, at=20),
        visit(3, Outcome.NOT_FOUND, at=25),
        visit(1, Outcome.DONE, at=30, attempt=2),
    ]
    assert waiting_at(visits, [5, 10, 20, 25, 30, 99]) == [0, 1, 2, 2, 1, 1]


def test_healthy_latency_is_that_of_first_visits_while_many_wait() -> None:
    """Only flights that arrive while at least half of the peak waits are measured, and none fed in a pause."""
    waiting = [visit(flight_id, Outcome.UNAVAILABLE, at=10) for flight_id in range(100, 110)]
    visits = [visit(1, Outcome.DONE, at=5), *waiting, visit(2, Outcome.DONE, at=20), visit(3, Outcome.DONE, at=90)]
    fed = {1: 1, 2: 13, 3: 30} | dict.fromkeys(range(100, 110), 10)
    assert 7 in healthy_ms(visits, fed)
    assert 60 in healthy_ms(visits, fed)
    assert 4 not in healthy_ms(visits, fed)
    assert 60 not in healthy_ms(visits, fed, pauses=[(25, 40)])


def test_without_waiting_flights_there_is_nothing_to_measure() -> None:
    """Nothing waited, so nothing was healthy while others waited."""
    assert healthy_ms([visit(1, Outcome.DONE, at=5)], {1: 1}) == []


def test_a_pause_ends_when_the_last_partition_is_served() -> None:
    """Deliveries of what was fed before the kill do not end it."""
    visits = [visit(1, Outcome.DONE, at=900), visit(2, Outcome.DONE, at=700), visit(3, Outcome.DONE, at=800)]
    fed, partitions = {1: 400, 2: 600, 3: 610}, {1: 1, 2: 0, 3: 1}
    assert pause_after(500, fed, partitions, visits) == 800
    assert pause_after(650, fed, partitions, visits) == 900  # nothing fed any more: the last first delivery
    assert pause_after(950, fed, partitions, visits) == 950

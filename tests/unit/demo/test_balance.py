"""The balance, from evidence made by hand."""

import dataclasses
from collections.abc import Sequence

import pytest

from retryapp.demo.balance import CLOCK_GRAIN_MS, Balance, Evidence, HandOff, Station, count, early_visits
from retryapp.demo.data import Fate
from retryapp.demo.view import balance_text
from retryapp.demo.visits import Outcome, Visit
from retryapp.ledger import Balance as PartitionBalance
from retryapp.ledger import Fault, Ledger, Problem

DELAYS = (1_000, 2_000)


def visit(flight_id: int, outcome: Outcome, *, attempt: int = 1, at: int = 10_000, **more: int | None) -> Visit:
    """Make a visit that took 5 ms."""
    return Visit(
        flight_id=flight_id,
        attempt=attempt,
        failure_id=f"demo/flights@id/0/{flight_id}",
        due_at_ms=more.get("due"),
        started_ms=at,
        ended_ms=at + 5,
        outcome=outcome,
        retry_after_ms=more.get("retry_after"),
    )


def handoff(station: Station, flight_id: int, *, attempt: int = 1, reason: str | None = None) -> HandOff:
    """Make a hand-off of a flight."""
    return HandOff(
        station=station,
        flight_id=flight_id,
        failure_id=f"demo/flights@id/0/{flight_id}",
        attempt=attempt,
        reason=reason,
    )


GOOD_VISITS = (
    visit(1, Outcome.DONE),
    visit(2, Outcome.UNAVAILABLE, at=10_000, retry_after=3_000),
    visit(2, Outcome.DONE, attempt=2, at=13_010, due=13_006),
    visit(3, Outcome.NOT_FOUND),
    visit(4, Outcome.UNPROCESSABLE),
)
WITHOUT_RETRY = tuple(each for each in GOOD_VISITS if (each.flight_id, each.attempt) != (2, 2))
GOOD_HANDOFFS = (
    handoff(Station.RETRY, 2),
    handoff(Station.REDELIVERY, 2),
    handoff(Station.DLQ, 3, reason="rejected"),
    handoff(Station.DLQ, 4, reason="rejected"),
)
FATES = {1: Fate.DONE, 2: Fate.DONE, 3: Fate.NOT_FOUND, 4: Fate.UNPROCESSABLE}


def balance(
    visits: Sequence[Visit] = GOOD_VISITS,
    handoffs: Sequence[HandOff] = GOOD_HANDOFFS,
    expected: dict[int, Fate] = FATES,
    ledger: Ledger | None = None,
) -> Balance:
    """Count a run over the good evidence, or over other evidence."""
    return count(
        Evidence(
            expected=expected,
            fed_ms=dict.fromkeys(expected, 9_990),
            visits=visits,
            handoffs=handoffs,
            delays_ms=DELAYS,
            ledger=ledger,
            kills=1,
            seconds=1.23,
        )
    )


def test_a_run_in_order_is_counted() -> None:
    """Every flight is done or dead, and nothing is found."""
    counted = balance()
    assert counted.is_in_order, counted.problems
    assert (counted.fed, counted.done, counted.done_at_first_try, counted.dead, counted.lost) == (4, 2, 1, 2, 0)
    assert counted.dead_by_reason == {"rejected": 2}
    assert counted.rejected_by_status == {"404": 1, "422": 1}
    assert counted.lateness.max == 4


def test_the_json_has_the_announced_keys() -> None:
    """The object that scripts read has these keys and no others."""
    shown = balance().as_json()
    assert list(shown) == [
        *["fed", "done", "dead", "dead_by_reason", "lost", "early", "duplicated_handoffs", "repeated_runs", "kills"],
        *["lateness_ms", "steady_lateness_ms", "healthy_ms", "seconds", "ledger"],
    ]
    assert shown["lateness_ms"] == {"p50": 4, "p99": 4, "max": 4}
    assert set(dict.fromkeys(shown["healthy_ms"])) == {"p50", "p99"}  # type: ignore[call-overload]
    assert shown["seconds"] == 1.2


def test_a_flight_that_only_waited_is_lost() -> None:
    """A flight with failed visits alone is neither done nor dead."""
    counted = balance(visits=WITHOUT_RETRY, handoffs=GOOD_HANDOFFS[2:])
    assert (counted.lost, counted.done) == (1, 1)
    assert counted.problems == ("1 flights are lost: neither done nor dead (2)",)


def test_a_retry_that_still_waits_is_a_finding() -> None:
    """A parked retry without its redelivery is named, even if the service had answered 200 to an earlier run."""
    counted = balance(handoffs=[*GOOD_HANDOFFS, handoff(Station.RETRY, 1)])
    assert counted.problems == ("1 retries were parked and never redelivered (demo/flights@id/0/1 attempt 1)",)


def test_a_redelivery_without_effect_is_a_finding() -> None:
    """A redelivered flight must be seen again: by the service, or in a further hand-off."""
    counted = balance(visits=[*WITHOUT_RETRY, visit(2, Outcome.DONE)])
    assert counted.problems == ("1 redeliveries had no effect (2)",)


def test_a_rejected_flight_without_its_dead_letter_is_lost() -> None:
    """The service's 404 alone is no fate: the dead letter must be there."""
    counted = balance(handoffs=GOOD_HANDOFFS[:2])
    assert (counted.lost, counted.dead) == (2, 0)
    assert not counted.is_in_order


def test_a_flight_never_delivered_is_lost() -> None:
    """A flight that nobody has seen is lost, too."""
    counted = balance(expected={**FATES, 5: Fate.DONE})
    assert counted.lost == 1
    assert "(5)" in counted.problems[0]


@pytest.mark.parametrize(
    ("second", "is_early"),
    [
        (visit(2, Outcome.DONE, attempt=2, at=13_005 - CLOCK_GRAIN_MS - 1), True),
        (visit(2, Outcome.DONE, attempt=2, at=13_005 - CLOCK_GRAIN_MS), False),
        (visit(2, Outcome.DONE, attempt=2, at=13_010, due=13_011), True),
        (visit(2, Outcome.DONE, attempt=2, at=13_010, due=13_010), False),
    ],
)
def test_early_is_judged_by_due_time_and_by_retry_after(second: Visit, *, is_early: bool) -> None:
    """Before the told due time, or before the answer's own wait has passed, is early."""
    visits = [each if (each.flight_id, each.attempt) != (2, 2) else second for each in GOOD_VISITS]
    counted = balance(visits=visits)
    assert counted.early == is_early
    assert counted.is_in_order is not is_early


@pytest.mark.parametrize(("outcome", "soonest"), [(Outcome.RESET, 10_005 + 1_000), (Outcome.TIMEOUT, 10_000 + 1_000)])
def test_without_retry_after_the_policy_says_the_soonest_time(outcome: Outcome, soonest: int) -> None:
    """Attempt 2 may not arrive before the first delay has passed; a time-out counts from its arrival."""
    first = visit(2, outcome)
    assert early_visits([first, visit(2, Outcome.DONE, attempt=2, at=soonest - CLOCK_GRAIN_MS - 1)], DELAYS) != []
    assert early_visits([first, visit(2, Outcome.DONE, attempt=2, at=soonest - CLOCK_GRAIN_MS)], DELAYS) == []


def test_of_repeated_runs_the_earliest_bounds_the_next() -> None:
    """Which of two runs failed for good is not known, so only the sure bound counts."""
    runs = [visit(2, Outcome.RESET, at=10_000), visit(2, Outcome.RESET, at=12_000)]
    assert early_visits([*runs, visit(2, Outcome.DONE, attempt=2, at=11_005 - CLOCK_GRAIN_MS)], DELAYS) == []
    assert early_visits([*runs, visit(2, Outcome.DONE, attempt=2, at=11_004 - CLOCK_GRAIN_MS)], DELAYS) != []


def test_a_repeated_run_is_counted_and_allowed() -> None:
    """The same attempt twice is what a kill costs; it is no finding."""
    counted = balance(visits=[*GOOD_VISITS, visit(1, Outcome.DONE, at=11_000)])
    assert counted.repeated_runs == 1
    assert counted.is_in_order


@pytest.mark.parametrize("station", Station)
def test_a_hand_off_twice_is_a_finding(station: Station) -> None:
    """The same failure and attempt twice on one station breaks the promise, and the finding names it."""
    twice = next(each for each in GOOD_HANDOFFS if each.station is station)
    counted = balance(handoffs=[*GOOD_HANDOFFS, twice])
    assert counted.duplicated_handoffs == 1
    assert "hand-offs are there twice" in counted.problems[0]
    assert f"on {station}" in counted.problems[0]


def test_hand_offs_of_different_attempts_are_no_duplicates() -> None:
    """One failure passes the same station once an attempt."""
    counted = balance(handoffs=[*GOOD_HANDOFFS, handoff(Station.REDELIVERY, 2, attempt=2)])
    assert counted.duplicated_handoffs == 0


def test_a_fate_against_the_data_is_a_finding() -> None:
    """A flight that must be done and is dead is found, though it is not lost."""
    counted = balance(handoffs=[*GOOD_HANDOFFS, handoff(Station.DLQ, 1, attempt=3, reason="exhausted")])
    assert counted.lost == 0
    assert counted.dead_by_reason == {"rejected": 2, "exhausted": 1}
    assert counted.problems == (
        "1 flights have another fate than the data say (1)",
        "1 flights are both done and dead (1)",
    )


def test_a_dead_letter_with_another_answer_is_a_finding() -> None:
    """A flight whose data say 422 and whose answer was 404 has the wrong fate."""
    visits = [*GOOD_VISITS[:-1], dataclasses.replace(GOOD_VISITS[-1], outcome=Outcome.NOT_FOUND)]
    assert "another fate" in balance(visits=visits).problems[0]


def test_an_attempt_beyond_the_policy_is_a_finding() -> None:
    """Two delays allow three attempts."""
    counted = balance(visits=[*GOOD_VISITS, visit(2, Outcome.DONE, attempt=4, at=99_000)])
    assert "more often than the policy allows (2)" in counted.problems[0]


def test_a_flight_that_was_never_fed_is_a_finding() -> None:
    """Deliveries of strangers are named."""
    counted = balance(visits=[*GOOD_VISITS, visit(99, Outcome.DONE)])
    assert counted.problems == ("1 flights were delivered that were never fed (99)",)
    assert counted.done == 2


def ledger(*problems: Problem, **counts: int) -> Ledger:
    """Make a ledger of two partitions: by default four received, two done, two dead."""
    told = {"received": 3, "done": 2, "dead": 1, **counts}
    return Ledger(
        group="demo",
        main="flights",
        since_ms=None,
        partitions={0: PartitionBalance(**told), 1: PartitionBalance(received=1, dead=1)},
        problems=problems,
        unread_events=0,
    )


def test_the_ledger_has_to_agree() -> None:
    """It counts the topics by itself; a fault that it finds, and another sum, are problems of the run."""
    agreed = balance(ledger=ledger())
    assert agreed.is_in_order
    counted = {"received": 4, "done": 2, "pending": 0, "dead": 2, "unknown": 0, "lost": 0, "problems": 0}
    assert agreed.as_json()["ledger"] == counted
    assert "  by the ledger                 4   = 2 done + 2 dead   (0 findings)\n" in balance_text(agreed)
    lost = Problem(fault=Fault.LOST, partition=1, failure_id="demo/flights@id/1/7", text="it is nowhere")
    assert balance(ledger=ledger(lost)).problems == ("the ledger says of demo/flights@id/1/7: lost: it is nowhere",)
    (problem,) = balance(ledger=ledger(done=1)).problems
    assert "the ledger has 4 received, 1 done, 2 dead; fed were 4" in problem

"""The balance, from evidence made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pytest

from retryapp.demo.balance import CLOCK_GRAIN_MS, Balance, count, early_visits
from retryapp.demo.visits import Outcome, Visit
from retryapp.ledger import Balance as PartitionBalance
from retryapp.ledger import Fault, Ledger, Problem

DELAYS = (1_000, 2_000)
FATES = {1: Outcome.DONE, 2: Outcome.DONE, 3: Outcome.NOT_FOUND, 4: Outcome.UNPROCESSABLE}


def visit(flight_id: int, outcome: Outcome, *, attempt: int = 1, at: int = 10_000, **more: int | None) -> Visit:
    return Visit(
        flight_id=flight_id,
        attempt=attempt,
        due_at_ms=more.get("due"),
        started_ms=at,
        ended_ms=at + 5,
        outcome=outcome,
        retry_after_ms=more.get("retry_after"),
    )


def ledger(*problems: Problem, **counts: int) -> Ledger:
    """Make a ledger of two partitions: by default four received, two done, two dead."""
    first = PartitionBalance(**{"received": 3, "done": 2, "dead": 1, **counts})
    partitions = {0: first, 1: PartitionBalance(received=1, dead=1)}
    return Ledger(
        group="demo", main="flights", since_ms=None, partitions=partitions, problems=problems, unread_events=0
    )


GOOD_VISITS = (
    visit(1, Outcome.DONE),
    visit(2, Outcome.UNAVAILABLE, at=10_000, retry_after=3_000),
    visit(2, Outcome.DONE, attempt=2, at=13_010, due=13_006),
    visit(3, Outcome.NOT_FOUND),
    visit(4, Outcome.UNPROCESSABLE),
)
TWICE = Problem(fault=Fault.TWICE, partition=1, failure_id="demo/flights@id/1/7", text="it is there twice")


def balance(
    visits: Sequence[Visit] = GOOD_VISITS, fates: Mapping[int, Outcome] = FATES, taken: Ledger | None = None
) -> Balance:
    """Count a run over the good evidence, or over other evidence."""
    return count(fates, visits, taken or ledger(), delays_ms=DELAYS, kills=1, seconds=1.23)


def test_a_run_in_order_is_counted() -> None:
    """Every flight is done or dead, log and ledger agree, and scripts find these keys."""
    assert asdict(balance()) == {
        "fed": 4,
        "done": 2,
        "dead": 2,
        "dead_by_status": {"404": 1, "422": 1},
        "lost": 0,
        "early": 0,
        "duplicated_handoffs": 0,
        "repeated_runs": 0,
        "outage_calls": 0,
        "outage_spent": 0,
        "outage_dead": 0,
        "recovery_s": 0.0,
        "kills": 1,
        "seconds": 1.2,
        "ledger": {"received": 4, "done": 2, "dead": 2, "pending": 0, "unknown": 0, "lost": 0, "problems": 0},
        "problems": (),
    }
    text = balance().text
    assert "  by the ledger                 4   2 done, 2 dead, 0 pending, 0 problems\n" in text
    assert text.endswith("In order: every flight is done or dead, none lost, none early, none twice.")


@pytest.mark.parametrize(
    ("visits", "fates"),
    [
        ([each for each in GOOD_VISITS if (each.flight_id, each.attempt) != (2, 2)], FATES),
        (GOOD_VISITS, {**FATES, 2: Outcome.DONE, 5: Outcome.DONE}),
    ],
    ids=["only waited", "never delivered"],
)
def test_a_flight_without_a_final_answer_is_lost(visits: Sequence[Visit], fates: Mapping[int, Outcome]) -> None:
    """It is neither done nor dead, and named."""
    counted = balance(visits, fates)
    (lost,) = fates.keys() - {each.flight_id for each in visits if each.outcome.is_final}
    assert counted.lost == 1
    assert counted.problems[0] == f"1 flights are lost: neither done nor dead ({lost})"
    assert "NOT in order:\n  - 1 flights are lost" in counted.text


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
    """Before the claimed due time, or before the answer's own wait has passed, is early."""
    counted = balance([each if (each.flight_id, each.attempt) != (2, 2) else second for each in GOOD_VISITS])
    assert counted.early == is_early
    assert counted.problems == (("1 deliveries came early (2)",) if is_early else ())


@pytest.mark.parametrize(("outcome", "soonest"), [(Outcome.RESET, 10_005 + 1_000), (Outcome.TIMEOUT, 10_000 + 1_000)])
def test_without_retry_after_the_policy_says_the_soonest_time(outcome: Outcome, soonest: int) -> None:
    """Attempt 2 may not arrive before the first delay has passed; a time-out counts from its arrival."""
    first = visit(2, outcome)
    assert early_visits([first, visit(2, Outcome.DONE, attempt=2, at=soonest - CLOCK_GRAIN_MS - 1)], DELAYS) != []
    assert early_visits([first, visit(2, Outcome.DONE, attempt=2, at=soonest - CLOCK_GRAIN_MS)], DELAYS) == []


def test_of_repeated_runs_the_earliest_bounds_the_next() -> None:
    """Which of two runs failed is not known, so only the sure bound counts."""
    runs = [visit(2, Outcome.RESET, at=10_000), visit(2, Outcome.RESET, at=12_000)]
    assert early_visits([*runs, visit(2, Outcome.DONE, attempt=2, at=11_005 - CLOCK_GRAIN_MS)], DELAYS) == []
    assert early_visits([*runs, visit(2, Outcome.DONE, attempt=2, at=11_004 - CLOCK_GRAIN_MS)], DELAYS) != []


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (visit(1, Outcome.DONE, at=11_000), None),
        (visit(2, Outcome.DONE, attempt=4, at=99_000), "1 flights were tried more often than the policy allows (2)"),
        (visit(99, Outcome.DONE), "1 flights were delivered that were never fed (99)"),
    ],
)
def test_a_visit_that_may_not_be_is_a_problem(more: Visit, problem: str | None) -> None:
    """Two delays allow three attempts; strangers are named. An attempt that a kill repeats is counted and allowed."""
    counted = balance([*GOOD_VISITS, more])
    assert counted.problems == (() if problem is None else (problem,))
    assert counted.repeated_runs == (problem is None)


def test_a_fate_against_the_data_is_a_problem() -> None:
    """Done in place of dead, dead in place of done, or dead by another answer."""
    answers = {Outcome.DONE: Outcome.NOT_FOUND, Outcome.NOT_FOUND: Outcome.UNPROCESSABLE}
    for number, fate in FATES.items():
        visits = [
            each.model_copy(update={"outcome": answers.get(fate, Outcome.DONE)}) if each.flight_id == number else each
            for each in GOOD_VISITS
        ]
        assert f"1 flights have another fate than the data say ({number})" in balance(visits).problems


def test_the_ledger_must_agree() -> None:
    """It counts the topics by itself; a problem that it finds, and other sums, are problems of the run."""
    assert balance(taken=ledger(TWICE)).problems == (
        "the ledger says of demo/flights@id/1/7: twice: it is there twice",
    )
    assert balance(taken=ledger(TWICE)).duplicated_handoffs == 1
    (problem,) = balance(taken=ledger(done=1, lost=1)).problems
    assert "the ledger has 4 received, 1 done, 2 dead; fed were 4" in problem
    assert balance(taken=ledger(done=1, lost=1)).lost == 1


def test_calls_in_the_outage_are_told_by_what_they_cost() -> None:
    """What ran again under its number cost nothing, and was not repeated by a kill; what did not was spent."""
    down = [visit(1, Outcome.DOWN, at=1_000), visit(1, Outcome.DOWN, at=3_000), visit(2, Outcome.DOWN, at=1_000)]
    counted = balance([*down, *GOOD_VISITS], taken=ledger(dead=2))
    assert (counted.outage_calls, counted.outage_spent, counted.outage_dead) == (3, 0, 1)
    assert counted.repeated_runs == 0
    late = visit(1, Outcome.DONE, at=7_000)
    assert balance([*down, late, *GOOD_VISITS[1:]], taken=ledger(dead=2)).recovery_s == 10.0, "flight 2, at 13,010"
    spent = [visit(2, Outcome.DOWN, attempt=3, at=20_000)]
    assert balance([*GOOD_VISITS, *spent]).outage_spent == 1

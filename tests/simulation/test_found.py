"""Histories in which the simulation has found something, each as small as it gets."""

from __future__ import annotations

from simulation import History, Plan
from simulation.plan import Fault


def test_a_dead_letter_that_the_broker_took_back_comes_again() -> None:
    """Its lane had nothing else to do, so nobody told it: the record was gone until somebody used the lane."""
    plan = Plan(
        seed=1,
        partitions=1,
        workers=1,
        offsets_ms=(0.0, 0.0, 0.0),
        records=((1.0, 0, "R"),),
        faults=(Fault(0.9, "broker stopped", 0, 0.05),),
    )
    result = History(plan).run()
    assert result.violation is None
    assert (result.reached["a commit was taken back"], result.reached["dead"]) == (1, 2)


def test_a_clock_that_is_ahead_forgets_no_event() -> None:
    """A worker read which events were seen before it knew the broker's time: to it they had expired."""
    plan = Plan(
        seed=1,
        partitions=1,
        workers=2,
        offsets_ms=(7_000_000.0, 0.0, 0.0),
        records=((1.0, 0, "S"),),
        faults=(Fault(3.0, "terminate", 1, 1.0),),
        repeats=((30.0, 0),),
    )
    result = History(plan).run()
    assert result.violation is None
    assert (result.reached["skipped"], result.reached["lane_opened"] > 1) == (1, True)


def test_a_failure_counts_from_the_latest_that_it_may_be() -> None:
    """A machine that heard its acknowledgements late took the broker's time for earlier than the next owner did."""
    assert History(Plan.of(866103590131)).run().violation is None


def test_what_runs_behind_a_suspect_does_not_end_the_worker_in_its_stead() -> None:
    """It had run behind what was not committed, beside a record that was buried for it, life after life."""
    result = History(Plan.of(277172099813)).run()
    assert result.violation is None
    assert result.reached["dead"] > 0


def test_a_worker_that_may_be_no_member_any_more_claims_no_rows() -> None:
    """No run began, so its claim ended, and the row was claimed again at once: the worker did nothing else."""
    assert History(Plan.of(381)).run().violation is None

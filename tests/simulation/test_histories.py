"""Histories of the retry protocol in virtual time: every invariant holds, whatever goes wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate

import pytest
from typing_extensions import override

from retryapp.engine.lane import transport
from retryapp.engine.lane.rounds import Rounds
from simulation import History, Plan, simulate, worker
from simulation.campaign import (
    EXPIRING_STATES,
    LETTER_STATES,
    MIXED_STATES,
    MODES_STATES,
    MOVED_STATES,
    SERVED_STATES,
    Summary,
    minimise,
    run_seeds,
)
from simulation.drawing import draw_plan
from simulation.plan import (
    COMMANDED,
    EXPIRING,
    HELD,
    LETTERS,
    LEVELS,
    MIXED,
    MODES,
    MOVED,
    RANGES,
    SERVED,
    STOPS,
    THROUGH,
)

pytestmark = pytest.mark.timeout(600)  # on a busy machine; the engine would take one that ends a history for a failure

SEEDS = 3_000
PART = QUICK = 125
"""So many run in `make test`, beside some of the other ranges; the rest in `make test-all`."""
PARTS = [pytest.param(first, marks=[] if first < QUICK else [pytest.mark.extended]) for first in range(0, SEEDS, PART)]
FEW = 75
COMMANDED_PARTS = [
    pytest.param(begin + first, marks=[] if (begin, first) == (HELD, 0) else [pytest.mark.extended])
    for begin in (COMMANDED, HELD)
    for first in range(0, 1_500, FEW)
]


def parts(begin: int, *counts: int) -> pytest.MarkDecorator:
    """Run a test with so many seeds of a range at a time; all but the first ones in `make test-all`."""
    cases = zip(accumulate((begin, *counts)), counts, strict=False)
    extended = [pytest.mark.extended]
    params = [pytest.param(first, count, marks=extended if first > begin else []) for first, count in cases]
    return pytest.mark.parametrize(("first", "count"), params)


def passed(first: int, count: int) -> Summary:
    part = run_seeds(range(first, first + count))
    assert part.failed == []
    return part


@pytest.fixture(scope="module")
def summary() -> Summary:
    """The sum of all histories that this module runs."""
    return Summary()


@pytest.mark.parametrize("first", PARTS)
def test_every_invariant_holds(first: int, summary: Summary) -> None:
    """Nothing is lost, early, tried too often or handed off twice, and everything comes to rest."""
    summary.add(passed(first, PART))


@pytest.mark.parametrize("first", COMMANDED_PARTS)
def test_every_command_is_obeyed_or_refused_once(first: int) -> None:
    """Whatever dies meanwhile; and every invariant holds with records that are cancelled, held, and replayed."""
    passed(first, FEW)


@parts(LEVELS, 50, 250, 250)
def test_outages_and_gates_hold_until_somebody_ends_them(first: int, count: int) -> None:
    """Also over crashes and rebalances; no attempt is spent in them, and nothing is lost."""
    part = passed(first, count)
    assert min(part.reached["outage-open obeyed"], part.reached["a rule has paused a partition"]) > 0


@parts(SERVED, 50, 250, 250)
def test_records_wait_for_their_own_service_alone(first: int, count: int) -> None:
    """Rows of a service that is out begin as its circuit allows, without an attempt spent; all others are on time."""
    part = passed(first, count)
    states = "closed", "half-open", "recovering"
    assert min(part.reached[f"a row of a service began, {state}"] for state in states) > 0
    assert [state for state in SERVED_STATES if not part.reached[state]] == []


@parts(STOPS, 50, 250, 250, 250)
def test_a_sequence_stops_behind_a_dead_record(first: int, count: int) -> None:
    """Until somebody replays, discards or releases it, whatever dies meanwhile; then it goes on in order."""
    part = passed(first, count)
    assert part.reached["a sequence has stopped"] > count


@parts(THROUGH, 40, 250, 250)
def test_what_is_due_again_comes_once_through_the_main_topic(first: int, count: int) -> None:
    """Behind its copy, whatever dies meanwhile; copies of other groups, and second ones, are no records."""
    part = passed(first, count)
    assert part.reached["copy"] > count


@parts(MOVED, 40, 375, 375)
def test_records_run_again_where_somebody_has_set_offsets_back(first: int, count: int) -> None:
    """Once more each, and none beside its row or before those that it comes after; also where capacities bind."""
    part = passed(first, count)
    assert part.reached["a record comes again"] > count
    assert count < 100 or [state for state in MOVED_STATES if not part.reached[state]] == []


@parts(LETTERS, 50, 500)
def test_a_letter_is_handled_or_replayed(first: int, count: int) -> None:
    """Not both, unless somebody forces it; once, and with a mark; what has no dead-letter topic leaves an event."""
    part = passed(first, count)
    missed = [state for state in LETTER_STATES if not part.reached[state]]
    assert missed == [] or count < 100
    assert min(part.reached["a letter was passed"], part.reached["discarded"]) > 0


@parts(MODES, 40, 250, 250)
def test_retries_come_as_the_settings_say(first: int, count: int) -> None:
    """No more at once, none faster, as conditions say, at the instants asked for; also where the clock is set."""
    part = passed(first, count)
    assert min(part.reached["came back at an instant"], part.reached["a row of a service with a rate began"]) > 0
    assert count < 100 or [state for state in MODES_STATES if not part.reached[state]] == []


@parts(MIXED, 40, 250, 250)
def test_everything_holds_where_settings_and_faults_meet(first: int, count: int) -> None:
    """Releases in any mode, commands beside offsets that are set back, an order in a topic that is made again."""
    part = passed(first, count)
    assert min(part.reached["a record waits for its release"], part.reached["a letter ends handled"]) > 0
    assert count < 100 or [state for state in MIXED_STATES if not part.reached[state]] == []


@parts(EXPIRING, 40, 250, 250)
def test_records_expire_at_their_deadline(first: int, count: int) -> None:
    """None sooner, none later, whatever holds them back; also where letters are handled, and where there are none."""
    part = passed(first, count)
    assert part.reached["a record has expired"] > count
    assert count < 100 or [state for state in EXPIRING_STATES if not part.reached[state]] == []


class Crowded(Rounds):
    """Two pieces of what can wait fill a round: in virtual time none would ever be full."""

    left = 0

    @override
    def _is_over(self) -> bool:
        if self._end_s is None:
            self._end_s, self.left = 0.0, 2
            asyncio.get_running_loop().call_soon(self._end)
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.extended] if first else []) for first in (0, 8)]
)
def test_everything_holds_where_rounds_of_the_event_loop_are_full(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Redeliveries, jobs and lanes stand in line then; lanes also where they send little."""
    monkeypatch.setattr(worker, "Rounds", Crowded)
    monkeypatch.setattr(transport, "SMALL", 0)
    count = 15 if first else 4
    assert [run_seeds(range(begin + first, begin + first + count)).failed for begin in RANGES] == [[]] * len(RANGES)


@pytest.mark.extended
def test_each_fault_and_each_way_to_fail_was_reached(summary: Summary) -> None:
    """A fault that never happens proves nothing (I13)."""
    if summary.passed < SEEDS:
        pytest.skip("only a part of the histories was run")
    later = {*MODES_STATES, *LETTER_STATES, *EXPIRING_STATES, *MIXED_STATES}
    assert set(summary.missed) <= {*SERVED_STATES, *MOVED_STATES, *later}
    assert summary.repeated > 0


def test_a_seed_takes_the_same_course_again() -> None:
    """Also in another process: a failure can be looked at."""
    seed = next(seed for seed in range(100) if len(draw_plan(seed).faults) > 2)
    code = f"from simulation import simulate; print(simulate({seed}).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": order},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for order in ("1", "2")
    }
    assert digests == {simulate(seed).digest}


def test_a_plan_without_a_record_repeats_the_others_as_before() -> None:
    """Or a failing history could not be made smaller."""
    plan = replace(draw_plan(1), repeats=((0.1, 0), (0.2, 2), (0.3, 1)))
    smaller = plan.without(1)
    assert smaller.records == (plan.records[0], *plan.records[2:])
    assert smaller.repeats == ((0.1, 0), (0.2, 1))
    assert History(smaller).run().violation is None


def test_another_seed_takes_another_course() -> None:
    """The digest tells histories apart."""
    assert simulate(1).digest != simulate(2).digest


def test_a_failing_plan_is_made_as_small_as_it_gets() -> None:
    """What does not matter is left out."""
    plan = draw_plan(3)
    plan = replace(plan, partitions=1, records=tuple((at_s, 0, script) for at_s, _, script in plan.records))
    wanted = plan.records[-1]

    def judge(each: Plan) -> str | None:
        return "I1 0/0: lost" if wanted in each.records else None

    small = minimise(plan, judge)
    assert (small.records, small.faults, small.workers) == ((wanted,), (), 1)


def test_a_plan_shows_what_happens() -> None:
    """Somebody has to understand it."""
    plan = draw_plan(27)
    told = str(plan)
    assert told.startswith("seed 27: ")
    assert all(str(fault) in told for fault in plan.faults)
    assert told.count("record on") == len(plan.records)


def test_what_nobody_delivers_is_told() -> None:
    """The judge does not only look at what happens."""
    history = History(replace(draw_plan(1), workers=1, faults=()))
    history._start = lambda slot: None  # type: ignore[method-assign]
    violation = history.run().violation
    assert violation is not None
    assert violation.startswith("I1 ")

"""The verifier of the campaign of real faults: a round in order passes, and each broken promise is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chaos.eyes import Copy, Injection, Input, Run, Told
from chaos.verify import Verdict, judge

FACTS = {"waits_ms": (300, 600), "single": True}
TESTS = Path(__file__).resolve().parents[2]
CONTENT = ["az==", "dg==", [["h", None]]]
OTHER = ["az==", "dw==", [["h", None]]]


class Round:
    """A round of two records: one is done at its second attempt, the other is dead after three."""

    def __init__(self) -> None:
        self.inputs = [Input((0, 0), "r0", "done", CONTENT, 900), Input((0, 1), "r1", "dead", CONTENT, 900)]
        self.runs = [
            run(0, 1, 1_000, 503), run(0, 2, 1_320, 200),
            run(1, 1, 1_000, 503), run(1, 2, 1_320, 503), run(1, 3, 1_950, 503),
        ]  # fmt: skip
        self.copies = [
            copy("retry", 0, 1, 1_011, due_ms=1_310), copy("succeeded", 0, 2, 1_330),
            copy("retry", 1, 1, 1_011, due_ms=1_310), copy("retry", 1, 2, 1_331, due_ms=1_930),
            copy("dlq", 1, 3, 1_960, reason="exhausted"),
        ]  # fmt: skip
        self.faults: list[Injection] = []
        self.waiting = 0
        self.unsettled = 0

    def judge(self, **facts: Any) -> Verdict:
        told = Told(self.copies, self.waiting, self.unsettled, [])
        return judge({**FACTS, **facts}, self.inputs, self.runs, self.faults, told)


def run(offset: int, attempt: int, begun_ms: int, status: int) -> Run:
    return Run((0, offset), attempt, begun_ms, CONTENT, 900, begun_ms + 10, status)


def copy(station: str, offset: int, attempt: int, at_ms: int, **more: Any) -> Copy:
    return Copy(station, station, 0, at_ms, at_ms, (0, offset), attempt, attempt, content=CONTENT, **more)


def test_a_round_in_order_passes() -> None:
    """Nothing is found, and all of it is counted."""
    verdict = Round().judge()
    assert verdict.passed, verdict
    assert (verdict.records, verdict.done, verdict.dead, verdict.runs, verdict.repeated) == (2, 1, 1, 5, 0)
    assert verdict.late_ms == {"p50": 10, "p99": 20, "max": 20}


def changed(part: str, index: int, **changes: Any) -> Callable[[Round], None]:

    def change(made: Round) -> None:
        entries = getattr(made, part)
        entries[index] = replace(entries[index], **changes)

    return change


def without(part: str, index: int) -> Callable[[Round], None]:
    return lambda made: getattr(made, part).pop(index)


def added(part: str, *entries: Any) -> Callable[[Round], None]:
    return lambda made: getattr(made, part).extend(entries)


def due_too_soon(made: Round) -> None:
    """Have the topics themselves say a time before the policy's."""
    changed("copies", 0, due_ms=1_100)(made)
    changed("runs", 1, begun_ms=1_200)(made)


handed_on_twice = added("copies", copy("retry", 0, 1, 1_013, due_ms=1_310))


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        pytest.param(without("copies", 4), "lost", id="no fate"),
        pytest.param(without("copies", 1), "lost", id="no success"),
        pytest.param(added("copies", copy("dlq", 0, 2, 1_340, reason="exhausted")), "wrong", id="two fates"),
        pytest.param(changed("inputs", 1, fate="done"), "wrong", id="dead instead"),
        pytest.param(changed("inputs", 1, reasons=("undecodable",)), "wrong", id="other reason"),
        pytest.param(without("inputs", 1), "wrong", id="stranger"),
        pytest.param(changed("runs", 1, begun_ms=1_309), "early", id="began early"),
        pytest.param(due_too_soon, "early", id="due too soon"),
        pytest.param(added("runs", run(1, 4, 2_700, 503)), "over_policy", id="fourth attempt"),
        pytest.param(added("copies", copy("retry", 1, 4, 2_710)), "over_policy", id="fourth attempt's failure"),
        pytest.param(without("runs", 3), "over_policy", id="attempt left out"),
        pytest.param(added("runs", run(0, 2, 9_000, 200)), "over_policy", id="ran again after its end"),
        pytest.param(without("copies", 0), "over_policy", id="never failed"),
        pytest.param(changed("runs", 1, content=OTHER), "altered", id="other bytes at the handler"),
        pytest.param(changed("copies", 2, content=OTHER), "altered", id="other bytes on the way"),
        pytest.param(changed("runs", 1, timestamp_ms=901), "altered", id="other time"),
        pytest.param(handed_on_twice, "copied", id="handed on twice"),
        pytest.param(lambda made: setattr(made, "waiting", 1), "leftover", id="still waits"),
        pytest.param(lambda made: setattr(made, "unsettled", 1), "leftover", id="not past the offsets"),
    ],
)
def test_a_broken_promise_is_found(breaks: Callable[[Round], None], named: str) -> None:
    """Under its name, and the round does not pass."""
    made = Round()
    breaks(made)
    verdict = made.judge()
    assert getattr(verdict, named), verdict
    assert not verdict.passed


def test_copies_are_allowed_where_the_fault_copies_records_and_left_out_where_it_named_them() -> None:
    """They follow from it; those that it made are known by where they lie."""
    made = Round()
    handed_on_twice(made)
    verdict = made.judge(single=False)
    assert verdict.passed
    assert len(verdict.copied) == 1
    made.faults = [Injection("copied", 1_000, 1_000, [["retry", 0, 1_013]])]
    assert made.judge().passed


def test_a_repeated_run_is_told_by_the_fault_before_it() -> None:
    """With what was in flight; without a fault in between nothing explains it."""
    made = Round()
    made.runs.insert(2, run(0, 2, 1_325, 200))
    assert made.judge().unexplained == 1
    made.faults = [Injection("kill -9", 1_322, 1_323), Injection("kill -9", 9_000, 9_000)]
    verdict = made.judge()
    assert (verdict.unexplained, verdict.repeated) == (0, 1)
    assert verdict.faults == [
        {"kind": "kill -9", "in_flight": 2, "repeated": 1, "attempts": 1},
        {"kind": "kill -9", "in_flight": 0, "repeated": 0, "attempts": 0},
    ]


def test_the_verifier_uses_nothing_of_retryapp() -> None:
    """Or its eyes would be those of what it judges."""
    program = "import sys, chaos.verify; print([name for name in sys.modules if name.startswith('retryapp')])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"

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


class Round:
    """A round of two records: one is done at its second attempt, the other is dead after three."""

    def __init__(self) -> None:
        self.inputs = [record(0, 1, "done"), record(1, 3, "dead")]
        self.runs = [
            run(0, 1, 1_000, 503), run(0, 2, 1_320, 200),
            run(1, 1, 1_000, 503), run(1, 2, 1_320, 503), run(1, 3, 1_950, 503),
        ]  # fmt: skip
        self.copies = [
            copy("retry", 0, 1, 1_011, due_ms=1_310), copy("redelivery", 0, 1, 1_312, due_ms=1_310),
            copy("succeeded", 0, 2, 1_330),
            copy("retry", 1, 1, 1_011, due_ms=1_310), copy("redelivery", 1, 1, 1_312, due_ms=1_310),
            copy("retry", 1, 2, 1_331, due_ms=1_930), copy("redelivery", 1, 2, 1_932, due_ms=1_930),
            copy("dlq", 1, 3, 1_960, reason="exhausted"),
        ]  # fmt: skip
        self.faults: list[Injection] = []
        self.waiting = 0
        self.unsettled = 0

    def judge(self, **facts: Any) -> Verdict:
        """Return what the verifier says of it."""
        told = Told(self.copies, self.waiting, self.unsettled, [], {})
        return judge({**FACTS, **facts}, self.inputs, self.runs, self.faults, told)


def record(offset: int, fails: int, fate: str) -> Input:
    """Return a published record."""
    return Input((0, offset), f"r{offset}", fails, fate, (), b"k", b"v", (("h", None),), 900)


def run(offset: int, attempt: int, begun_ms: int, status: int) -> Run:
    """Return a run that was answered 10 ms later."""
    return Run((0, offset), attempt, begun_ms, None, 7, b"k", b"v", (("h", None),), 900, begun_ms + 10, status)


def copy(station: str, offset: int, attempt: int, at_ms: int, **more: Any) -> Copy:
    """Return a hand-off."""
    return Copy(
        station, station, 0, at_ms, at_ms, (0, offset), attempt, key=b"k", value=b"v", headers=(("h", None),), **more
    )


def test_a_round_in_order_passes() -> None:
    """Nothing is found, and all of it is counted."""
    verdict = Round().judge()
    assert verdict.passed, verdict
    assert (verdict.records, verdict.done, verdict.dead, verdict.runs, verdict.repeated) == (2, 1, 1, 5, 0)
    assert verdict.late_ms == {"p50": 10, "p99": 20, "max": 20}


def _no_fate(made: Round) -> None:
    made.copies = [each for each in made.copies if each.station != "dlq"]


def _no_success(made: Round) -> None:
    made.copies = [each for each in made.copies if each.station != "succeeded"]


def _two_fates(made: Round) -> None:
    made.copies.append(copy("dlq", 0, 2, 1_340, reason="exhausted"))


def _dead_instead(made: Round) -> None:
    made.inputs[1] = replace(made.inputs[1], fate="done")


def _other_reason(made: Round) -> None:
    made.inputs[1] = replace(made.inputs[1], reasons=("undecodable",))


def _stranger(made: Round) -> None:
    made.inputs.pop()


def _began_early(made: Round) -> None:
    made.runs[1].begun_ms = 1_309


def _fired_early(made: Round) -> None:
    made.copies[1] = replace(made.copies[1], at_ms=1_309)


def _due_too_soon(made: Round) -> None:
    made.copies[0] = replace(made.copies[0], due_ms=1_100)
    made.copies[1] = replace(made.copies[1], due_ms=1_100)
    made.runs[1].begun_ms = 1_200


def _fourth_attempt(made: Round) -> None:
    made.copies.append(copy("retry", 1, 3, 1_965, due_ms=2_000))
    made.runs.append(run(1, 4, 2_700, 503))


def _attempt_left_out(made: Round) -> None:
    made.runs.pop(3)


def _ran_again_after_its_end(made: Round) -> None:
    made.runs.append(run(0, 2, 9_000, 200))


def _never_failed(made: Round) -> None:
    made.copies.pop(0)


def _other_value_at_the_handler(made: Round) -> None:
    made.runs[1].value = b"w"


def _other_headers_on_the_way(made: Round) -> None:
    made.copies[3] = replace(made.copies[3], headers=())


def _other_time(made: Round) -> None:
    made.runs[1].timestamp_ms = 901


def _handed_on_twice(made: Round) -> None:
    made.copies.append(replace(made.copies[1], offset=99))


def _still_waits(made: Round) -> None:
    made.waiting = 1


def _not_behind_the_offsets(made: Round) -> None:
    made.unsettled = 1


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (_no_fate, "lost"), (_no_success, "lost"), (_two_fates, "wrong"), (_dead_instead, "wrong"),
        (_other_reason, "wrong"), (_stranger, "wrong"), (_began_early, "early"), (_fired_early, "early"),
        (_due_too_soon, "early"), (_fourth_attempt, "over_policy"), (_attempt_left_out, "over_policy"),
        (_ran_again_after_its_end, "over_policy"), (_never_failed, "over_policy"),
        (_other_value_at_the_handler, "altered"), (_other_headers_on_the_way, "altered"), (_other_time, "altered"),
        (_handed_on_twice, "copied"), (_still_waits, "leftover"), (_not_behind_the_offsets, "leftover"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_found(breaks: Callable[[Round], None], named: str) -> None:
    """Under its name, and the round does not pass."""
    made = Round()
    breaks(made)
    verdict = made.judge()
    assert getattr(verdict, named), verdict
    assert not verdict.passed


def test_copies_are_counted_and_allowed_where_the_fault_copies_records() -> None:
    """They follow from it."""
    made = Round()
    _handed_on_twice(made)
    verdict = made.judge(single=False)
    assert verdict.passed
    assert len(verdict.copied) == 1


def test_copies_that_the_fault_has_made_are_not_ours() -> None:
    """They are known by where they lie."""
    made = Round()
    _handed_on_twice(made)
    made.faults = [Injection("copied", 1_000, 1_000, frozenset({("redelivery", 0, 99)}))]
    assert made.judge().passed


def test_a_repeated_run_is_told_by_the_fault_before_it() -> None:
    """With what was in flight; without a fault in between nothing explains it."""
    made = Round()
    made.runs.insert(2, run(0, 2, 1_325, 200))
    assert made.judge().unexplained == 1
    made.faults = [Injection("kill -9", 1_322, 1_323), Injection("kill -9", 9_000, 9_000)]
    verdict = made.judge()
    assert verdict.unexplained == 0
    assert verdict.repeated == 1
    assert verdict.faults == [
        {"kind": "kill -9", "in_flight": 2, "repeated": 1, "attempts": 1},
        {"kind": "kill -9", "in_flight": 0, "repeated": 0, "attempts": 0},
    ]


def test_the_verifier_uses_nothing_of_retryapp() -> None:
    """Or its eyes would be those of what it judges."""
    program = "import sys, chaos.verify; print([name for name in sys.modules if name.startswith('retryapp')])"
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"

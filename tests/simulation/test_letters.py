"""The judge of dead letters with a handler finds each way in which one is wrong, and nothing where all is right."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import methodcaller
from operator import methodcaller as do
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.control import LetterMark, MarkKind
from retryapp.core.letters import read_letter
from retryapp.core.record import Record
from simulation.drawing import draw_plan
from simulation.letters import LETTERS as TOPIC
from simulation.letters import Letters
from simulation.odd_letters import COUNTLESS, FOREIGN, NONE, ODD, PLACELESS
from simulation.oracle import Oracle
from simulation.plan import LETTERS
from simulation.story import Call, Opening, Topics, Violation

HEADERS = (("trace", b"1"), ("retry-origin", b"orders@x/0/3"), ("retry-reason", b"rejected"), ("retry-attempt", b"1"))


class Told:
    """A judge with one letter, and short ways to tell it things."""

    def __init__(self) -> None:
        self.oracle = Oracle(Topics(TOPIC, "retry", "none", "events", "changelog"), (100,), later_ms=50, skew_ms=0)
        self.letters = Letters(replace(draw_plan(LETTERS), letters=("S",)), self.oracle)
        self.in_vain = list[Record]()
        self.letter()

    def letter(self, offset: int = 0, origin: bytes = b"orders@x/0/3") -> None:
        headers = (HEADERS[0], ("retry-origin", origin), *HEADERS[2:])
        self.letters.appeared([Record(TOPIC, 0, offset, 7, b"k", b"v", headers)], 1_000)

    def odd(self, kind: str) -> None:
        headers = tuple(each for each in HEADERS if kind != NONE or not each[0].startswith("retry-"))
        damaged = {COUNTLESS: "retry-attempt", PLACELESS: "retry-origin"}.get(kind)
        self.headers = (*((name, b"x" if name == damaged else value) for name, value in headers), (ODD, kind.encode()))
        self.letters.appeared([Record(TOPIC, 0, 0, 7, b"k", b"v", self.headers)], 1_000)

    def begin_odd(self, damage: str | None) -> None:
        told = read_letter(self.headers)
        self.letters.begun((0, 0), replace(told, damage=damage), Opening("w", 0.0))

    def call(self, *, fine: bool = True) -> None:
        self.oracle.ended((0, 0), 1, Call("w", 0, 10, fine))

    def mark(self, kind: str, *, of: str = "sim/orders@x/0/3", letter: int = 0, at_ms: float = 2_000) -> None:
        told = json.dumps({"failure_id": of, "letter": letter, "command": "c1"}).encode()
        headers = (("retry-mark", kind.encode()),)
        self.letters.appeared([Record(TOPIC, 0, 9, 7, None, told, headers)], at_ms)

    def begin(self, *, fenced_ms: float = 0.0, reason: bytes = b"rejected") -> None:
        told = read_letter(tuple((name, reason if name == "retry-reason" else value) for name, value in HEADERS))
        self.letters.begun((0, 0), replace(told, damage=None), Opening("w", fenced_ms))

    def end(self, fate: str) -> None:
        self.oracle.stories[0, 0].fates.append(fate)

    def mark_in_vain(self, kind: str) -> None:
        """Have the broker take a mark back that it has acknowledged."""
        of, numbers = "sim/orders@x/0/3", {"letter": 0, "delivery": 1, "replays": 0}
        mark = LetterMark(mark=MarkKind(kind), failure_id=of, command="c1", **numbers).to_record(TOPIC, 0)
        self.in_vain.append(Record(TOPIC, 0, 9, 7, mark.key, mark.value, mark.headers))

    def at_rest(self) -> None:
        broker: Any = SimpleNamespace(acknowledged_in_vain=lambda _tp: self.in_vain)
        self.letters.at_rest(broker)


HANDLED = [do("begin"), do("call"), do("mark", "handled")]
REST = do("at_rest")


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([*HANDLED, REST], id="handled"),
        pytest.param([do("begin"), do("mark", "failed"), do("end", "dead"), do("mark", "replayed"), REST], id="failed"),
        pytest.param([do("mark", "discarded"), do("mark", "restored"), *HANDLED, REST], id="restored"),
        pytest.param(
            [do("mark", "discarded"), do("mark", "restored", at_ms=3_000), do("begin", fenced_ms=2_500)],
            id="restored since its lane opened",
        ),
        pytest.param([do("mark", "replayed"), do("end", "skipped"), REST], id="passed"),
        pytest.param([*HANDLED, do("begin", fenced_ms=1_500), REST], id="begins where nobody can know"),
        pytest.param([do("begin"), do("call"), do("mark_in_vain", "handled"), REST], id="its mark was taken back"),
        *(
            pytest.param([do("odd", kind), do("begin_odd", damage), REST], id=kind)
            for kind, damage in ((FOREIGN, None), (PLACELESS, "no place"), (NONE, "no headers"))
        ),
        pytest.param(
            [do("odd", COUNTLESS), do("begin_odd", "no count"), do("call"), do("mark", "handled"), REST], id=COUNTLESS
        ),
    ],
)
def test_what_may_be_holds(steps: list[methodcaller]) -> None:
    """Each way to end."""
    told = Told()
    for step in steps:
        step(told)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([*HANDLED, do("mark", "handled")], id="handled twice"),
        pytest.param([*HANDLED, do("mark", "replayed")], id="replayed without force"),
        pytest.param([*HANDLED, do("mark", "discarded")], id="discarded"),
        pytest.param([do("mark", "replayed"), *HANDLED], id="replayed, and handled"),
        pytest.param([do("mark", "replayed"), do("mark", "replayed")], id="replayed twice"),
        pytest.param([do("call", fine=False), do("mark", "handled")], id="handled by a failure"),
        pytest.param([*HANDLED, do("begin", fenced_ms=2_500)], id="begins after its mark"),
        pytest.param([do("mark", "discarded"), do("begin", fenced_ms=2_500)], id="begins, and is discarded"),
        pytest.param(
            [
                *(do("mark", kind) for kind in ("discarded", "restored", "discarded")),
                do("begin", fenced_ms=2_500),
            ],
            id="begins, and is discarded once more",
        ),
        pytest.param(
            [
                do("mark", "failed"),
                do("mark", "discarded"),
                do("mark", "restored", at_ms=3_000),
                do("begin", fenced_ms=2_500),
            ],
            id="begins, and had failed before it was restored",
        ),
        pytest.param([do("begin", reason=b"exhausted")], id="another reason"),
        pytest.param([do("mark", "failed", of="sim/orders@x/0/4")], id="a mark of another record"),
        pytest.param([do("mark", "failed", letter=5)], id="a mark of none"),
        pytest.param([do("letter", 5, b"sim.orders.dlq@x/0/0")], id="a letter of a letter"),
        pytest.param([REST], id="no mark"),
        pytest.param([do("mark_in_vain", "failed"), REST], id="another mark was taken back"),
        *(
            pytest.param([do("odd", kind), do("call"), do("mark", "handled")], id=f"a mark of what is {kind}")
            for kind in (FOREIGN, PLACELESS, NONE)
        ),
        pytest.param([do("odd", COUNTLESS), REST], id="no mark of a damaged one"),
        pytest.param([do("odd", COUNTLESS), do("begin_odd", None)], id="damaged, and it says otherwise"),
        pytest.param([do("odd", FOREIGN), do("begin_odd", "x")], id="sound, and it says otherwise"),
        pytest.param([do("mark", "failed"), REST], id="failed, and is done"),
        pytest.param([do("end", "skipped"), REST], id="passed for no reason"),
    ],
)
def test_what_may_not_be_is_found(steps: list[methodcaller]) -> None:
    """By the last step, and not before."""
    told = Told()
    for step in steps[:-1]:
        step(told)
    with pytest.raises(Violation, match="I28 0/"):
        steps[-1](told)

"""The judge of what workers count finds a hole, an overlap and a wrong count, and nothing where all is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import methodcaller
from operator import methodcaller as do

import pytest

from retryapp.core.hops import Outgoing
from retryapp.ports import Committed, TopicPartition
from simulation.broker import Broker
from simulation.counts import check_counts
from simulation.loop import VirtualLoop
from simulation.oracle import Oracle
from simulation.story import Call, Topics, Violation

TOPICS = Topics("orders", "retry", "dlq", "events", "changelog", "seen")
MAIN, EVENTS, CHANGELOG = (TopicPartition(name, 0) for name in ("orders", "events", "changelog"))


class Told:
    """A partition with four records, all fine; short ways to say what workers have counted."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.broker = Broker(loop, 1)
        self.oracle = Oracle(TOPICS, (100,), later_ms=50, skew_ms=0)
        for offset in range(4):
            self.broker.append(MAIN, Outgoing(*MAIN, b"k", b"v", ()))
            self.oracle.add(self.broker.logs[MAIN].entries[-1].record, "S")
            self.oracle.ended((0, offset), 1, Call("w", 0, 1, fine=True))

    def say(self, first: int, end: int, received: int | None = None, ok: int | None = None) -> None:
        received = end - first if received is None else received
        told = {"received": received, "first_try_ok": received if ok is None else ok, "skipped": 0}
        value = json.dumps({"kind": "progress", "from_offset": first, "to_offset": end, **told}).encode()
        self.broker.append(EVENTS, Outgoing(*EVENTS, b"", value, ()))

    def commit(self, offset: int, note: str = "r0:life") -> None:
        self.broker._move({MAIN: Committed(offset, note)})

    def judge(self) -> int:
        return check_counts(self.broker, self.oracle, TOPICS)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.abandon()


@pytest.fixture
def told(loop: VirtualLoop) -> Told:
    return Told(loop)


def test_ranges_that_join_are_right(told: Told) -> None:
    """Events, and what stands beside the offset."""
    told.say(0, 1)
    told.say(1, 3)
    told.commit(4, "r0:life p1:3-4@7:1,1,0")
    assert told.judge() == 2


def test_nothing_beside_an_offset_that_an_event_has_reached_is_right(told: Told) -> None:
    told.say(0, 4)
    told.commit(4)
    assert told.judge() == 1


def test_a_group_that_is_forgotten_goes_on_by_its_changelog(told: Told) -> None:
    """There it is said as well, of the last transaction."""
    told.say(0, 1)
    for offset in (3, 4):
        value = json.dumps({"next": {"orders": offset}, "tally": f"p1:1-{offset}@7:{offset - 1},{offset - 1},0"})
        told.broker.append(CHANGELOG, Outgoing(*CHANGELOG, b"progress", value.encode(), ()))
    assert told.judge() == 1


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([do("say", 0, 1), do("say", 2, 4), do("commit", 4)], id="hole"),
        pytest.param([do("say", 0, 2), do("commit", 4, "r0:life p1:3-4@7:1,1,0")], id="hole before the offset"),
        pytest.param([do("say", 0, 2), do("commit", 4)], id="forgotten"),
        pytest.param([do("say", 0, 2), do("say", 1, 4), do("commit", 4)], id="overlap"),
        pytest.param([do("say", 0, 4), do("commit", 4, "r0:life p1:0-4@7:4,4,0")], id="twice"),
        pytest.param([do("say", 0, 4, received=3), do("commit", 4)], id="too few"),
        pytest.param([do("say", 0, 4, ok=3), do("commit", 4)], id="wrong outcome"),
        pytest.param([do("commit", 4, "p1:0-4@7:4,3,0")], id="wrong outcome with the offset"),
    ],
)
def test_what_is_wrong_is_found(told: Told, steps: list[methodcaller]) -> None:
    for step in steps:
        step(told)
    with pytest.raises(Violation, match="I12 0/"):
        told.judge()

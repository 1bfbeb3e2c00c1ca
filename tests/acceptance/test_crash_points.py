"""Workers that die of SIGKILL at a chosen call on a record's way, one after the other, on a real broker.

Several groups at once lead a chain of lives each: a round of records comes, a worker starts, dies at its point and is
followed by the next one; the last one lives. Then the topics, read as a committed reader, have to say that nothing was
lost, early or handed on twice.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from acceptance.books import check_books
from chaos.crashes import POINTS
from harness import HandlerSpec, Stage, Worker

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(240)]

POLICY = "200ms 400ms"
WAITS_MS = (200, 400)
ROUND = 12
"""Records published before each life: a quarter each fails never, once, twice, always."""


Crash = dict[str, Any]


def crash(point: str, moment: str = "after", holding: str = "", after: int = 0) -> Crash:
    """Return the entry `crash` of the program's spec: where a worker dies (for the fields see `user_app.arm`)."""
    return {"point": point, "moment": moment, "holding": holding, "after": after}


@dataclass(slots=True)
class Lived:
    """A group that has been through its chain of crashes."""

    crashes: tuple[Crash, ...]
    lose_store: bool
    """Each worker begins without a local store."""
    stage: Stage
    topic: str
    lives: int = 0
    """How many workers have ended."""

    def start(self) -> Worker:
        """Publish a round of records and start the next worker."""
        n = self.lives
        more = {"crash": self.crashes[n]} if n < len(self.crashes) else {}
        self.stage.program(
            # as many kills in a row as a chain has, and no record is to blame for one (rule 31 has a test of its own)
            HandlerSpec(topic=self.topic, policy=POLICY, max_crashes=len(self.crashes) + 1),
            app_options={"datadir": str(self.stage.folder / (f"data{n}" if self.lose_store else "data"))},
            **more,
        )
        self.stage.produce(self.topic, [{"id": i, "fail": i % 4} for i in range(n * ROUND, (n + 1) * ROUND)])
        return self.stage.worker(f"life{n}", ready=False)

    def see_die(self, worker: Worker) -> None:
        assert worker.wait(30) == -signal.SIGKILL, worker.log[-3000:]
        assert f"crash: {self.crashes[self.lives]}" in worker.log
        self.lives += 1


def chain(*words: str) -> tuple[Crash, ...]:
    """Return the crashes of the campaign whose names have one of the words; at every other one the second call dies."""
    points = enumerate(point for point in POINTS if any(word in point[0] for word in words))
    return tuple(crash(*point, after=number % 2) for number, (_, *point) in points)


CHAINS = {
    "first failures": chain("first failure"),
    "due rows": chain("row", "outcome"),
    "openings": (
        crash("KafkaTransport.fence"),
        crash("KafkaTransport.committed", after=1),
        crash("KafkaTransport.recover", "before"),
        crash("Table.recover"),
        crash("KafkaTransport.release", "before", after=1),
        crash("KafkaTransport.release"),
    ),
    "marks of suspects": (
        *[crash("Program.call_service", "before")] * 3,  # of each partition or of one: twice at the same place
        *(crash("Producer.commit_transaction", moment, "mark") for moment in ("before", "during", "after")),
    ),
}
LOSE_STORE = "openings"
"""The chain whose workers each begin without a local store."""


@pytest.fixture(scope="module")
def groups(bootstrap: str, make_stage: Callable[[str], Stage]) -> dict[str, Lived]:
    """Let all groups live, side by side."""
    made: dict[str, Lived] = {}
    for name, crashes in CHAINS.items():
        stage = make_stage(bootstrap)
        made[name] = Lived(crashes, name == LOSE_STORE, stage, stage.main_topic())
    while dying := [group for group in made.values() if group.lives < len(group.crashes)]:
        for group, worker in [(group, group.start()) for group in dying]:
            group.see_die(worker)
    for group in made.values():
        group.start()
    return made


@pytest.mark.parametrize("name", CHAINS)
def test_every_record_has_one_fate(groups: dict[str, Lived], name: str) -> None:
    """Each record is done or dead, and left each trace once, none early."""
    group = groups[name]
    stage, topic = group.stage, group.topic
    total = stage.wait_settled(topic)
    count = (len(group.crashes) + 1) * ROUND
    check_books(stage, topic, count, WAITS_MS)
    ids = {visit.failure_id: visit.facts["id"] for visit in stage.service.of(topic)}
    expected = Counter((station, i, attempt) for i in range(count) for station, attempt in leaves(i % 4))
    handoffs = stage.evidence(topic).handoffs()
    assert {(station, ids[failure], attempt): n for (station, failure, attempt), n in handoffs.items()} == expected
    assert (total.received, total.done, total.dead) == (count, count * 3 // 4, count // 4)
    assert not stage.workers[-1].ended(), "the last one lives"


def leaves(fails: int) -> list[tuple[str, int]]:
    """Return what a record leaves that fails so often: stations and the attempts that ended there."""
    retried = [("retry", n) for n in range(1, min(fails, 2) + 1)]
    end = [] if fails == 0 else [("dlq", 3)] if fails == 3 else [("succeeded", fails + 1)]
    return retried + end

"""The ledger beside real workers: at many moments while they run and one is killed, and at rest."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from harness import HandlerSpec, Stage

from retryapp.ledger import Ledger, take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(150)]

ROUND = 48  # of each kind as many as of another
CUTS, MOVING = 14, 8
"""Ledgers that are taken while records come, and how many of them at least have some that wait."""


def feed(stage: Stage, topic: str, stop: threading.Event) -> int:
    """Publish records until told to stop, a quarter of which each fails never, once, twice, always; return how many."""
    fed = 0
    while not stop.is_set():
        stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(fed, fed + ROUND)])
        fed += ROUND
        stop.wait(0.2)
    return fed


@dataclass
class Feeding:
    """A feeder in a thread."""

    stage: Stage
    topic: str
    fed: int = 0

    def __post_init__(self) -> None:
        """Begin."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.fed = feed(self.stage, self.topic, self._stop)

    def end(self) -> None:
        """Let it end."""
        self._stop.set()
        self._thread.join(30)


def test_every_moment_of_a_running_group_adds_up(stage: Stage) -> None:
    """Two workers, one killed and started again; no cut finds fault, and the last one agrees with the service."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms"))
    first = stage.worker()
    stage.worker()
    topology = stage.topology(topic)
    feeding = Feeding(stage, topic)
    cuts: list[Ledger] = []
    try:
        while len(cuts) < CUTS or len([cut for cut in cuts if cut.total.pending]) < MOVING:
            cuts.append(take_ledger(stage.connection, topology))
            if len(cuts) == 8:
                first.kill()
            if len(cuts) == 10:
                stage.worker(ready=False)
    finally:
        feeding.end()
    stage.wait_settled(topic)
    cuts.append(take_ledger(stage.connection, topology))
    assert [problem for cut in cuts for problem in cut.problems] == []
    received = [cut.total.received for cut in cuts]
    assert received == sorted(received)
    rest = cuts[-1].total
    assert (rest.received, rest.pending, rest.unknown, rest.lost) == (feeding.fed, 0, 0, 0)
    assert rest.done == len(stage.service.done(topic)) == feeding.fed * 3 // 4
    assert (rest.dead, rest.recovered) == (feeding.fed // 4, feeding.fed // 2)
    assert rest.copies == 0

"""The ledger beside real workers: at many moments while they run and one is killed, and at rest."""

from __future__ import annotations

import pytest
from acceptance.books import repeating
from harness import HandlerSpec, Stage

from retryapp.ledger import Ledger, take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(150)]

ROUND = 48  # of each kind as many as of another
CUTS, MOVING = 14, 8
"""Ledgers that are taken while records come, and how many of them at least have some that wait."""


def test_every_moment_of_a_running_group_adds_up(stage: Stage) -> None:
    """Two workers, one killed and started again; no cut finds fault, and the last one agrees with the service."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms"))
    first = stage.worker()
    stage.worker()
    topology = stage.topology(topic)
    cuts: list[Ledger] = []
    fed = 0

    def feed() -> None:  # a quarter of each round fails never, once, twice, always
        nonlocal fed
        fed += stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(fed, fed + ROUND)])

    with repeating(feed, 0.2):
        while len(cuts) < CUTS or len([cut for cut in cuts if cut.total.pending]) < MOVING:
            cuts.append(take_ledger(stage.connection, topology))
            if len(cuts) == 8:
                first.kill()
            if len(cuts) == 10:
                stage.worker(ready=False)
    rest = stage.wait_settled(topic)
    assert [problem for cut in cuts for problem in cut.problems] == []
    received = [cut.total.received for cut in cuts]
    assert received == sorted(received)
    assert (rest.received, rest.pending, rest.unknown, rest.lost) == (fed, 0, 0, 0)
    assert rest.done == len(stage.service.done(topic)) == fed * 3 // 4
    assert (rest.dead, rest.recovered) == (fed // 4, fed // 2)

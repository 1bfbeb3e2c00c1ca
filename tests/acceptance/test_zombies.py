"""Workers that are stopped for longer than their session and then go on, not knowing that others have taken over."""

from __future__ import annotations

import signal

import pytest
from acceptance.books import check_books
from harness import HandlerSpec, Stage, Worker, wait_for

WAITS_MS = (300, 600)
ROUND = 80


def opened(worker: Worker) -> int:
    """Return how many lanes it has opened in its life."""
    return worker.log.count("retryapp.lane_opened")


@pytest.mark.broker
@pytest.mark.acceptance
@pytest.mark.extended
@pytest.mark.timeout(150)
def test_a_worker_that_was_stopped_past_its_session(stage: Stage) -> None:
    """Two workers under load; one stands still until the other has its partitions, then goes on; twice."""
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms", concurrency=4))
    zombie, other = stage.worker("zombie", ready=False), stage.worker("other", ready=False)
    for worker in (zombie, other):
        worker.wait_ready()
    count = 0
    for _ in range(2):
        stop_past_its_session(stage, topic, zombie, other, count)
        count += 3 * ROUND
    stage.wait_settled(topic, timeout_s=60)
    check_books(stage, topic, count, WAITS_MS)
    for worker in (zombie, other):
        assert not worker.ended(), "the same process lived through it"
        assert worker.stop() == 0


def stop_past_its_session(stage: Stage, topic: str, zombie: Worker, other: Worker, start: int) -> None:
    """Stop a worker under load until the other one has all partitions, and have it go on until it has a share."""
    seen = len(stage.service.visits)
    load(stage, topic, start)
    wait_for(lambda: zombie.pid in {visit.pid for visit in stage.service.visits[seen:]}, "it works")
    zombie.signal(signal.SIGSTOP)  # in the middle of handlers and transactions
    others = opened(other)
    load(stage, topic, start + ROUND)
    wait_for(lambda: opened(other) >= others + 4, "the other one has all partitions")
    known = opened(zombie)
    zombie.signal(signal.SIGCONT)
    load(stage, topic, start + 2 * ROUND)
    wait_for(lambda: opened(zombie) > known, "it has a share again")


def load(stage: Stage, topic: str, start: int) -> None:
    """Publish a round of records: a quarter each fails never, once, twice, always."""
    stage.produce(topic, [{"id": n, "fail": n % 4} for n in range(start, start + ROUND)], 4)

"""Workers that are stopped for longer than their session and then go on, not knowing that others have taken over."""

from __future__ import annotations

import asyncio
import gc
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ProducerFenced
from harness import HandlerSpec, Stage, Worker, wait_for

from retryapp.core.hops import Outgoing
from retryapp.ports import LaneBatch, TopicPartition
from retryapp.runtime.publisher import KafkaTransport
from retryapp.testing import VirtualClock

WAITS_MS = (300, 600)
ROUND = 80


def opened(worker: Worker) -> int:
    """Return how many lanes it has opened in its life."""
    return worker.log.count("retryapp.lane_opened")


@pytest.mark.broker
@pytest.mark.acceptance
@pytest.mark.timeout(150)
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_worker_that_was_stopped_past_its_session(stage: Stage, delivery: str) -> None:
    """Two workers under load; one stands still until the other has its partitions, then goes on; twice."""
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms", concurrency=4), options={"delivery": delivery})
    zombie, other = stage.worker("zombie", ready=False), stage.worker("other", ready=False)
    for worker in (zombie, other):
        worker.wait_ready()
    count = 0
    for _ in range(2):
        stop_past_its_session(stage, topic, zombie, other, count)
        count += 3 * ROUND
    stage.wait_settled(topic, timeout_s=60)
    check_books(stage, topic, count, copies=delivery == "at_least_once")
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


def check_books(stage: Stage, topic: str, count: int, *, copies: bool) -> None:
    """Every record has one fate, none came early, and copies are only where the mode allows them.

    A run that the stop cut off runs again with its attempt number: visits may repeat, what was recorded may not.
    """
    evidence = stage.evidence(topic)
    hopeless = {n for n in range(count) if n % 4 == 3}
    ids = {visit.failure_id: visit.facts["id"] for visit in stage.service.of(topic)}
    assert stage.service.done(topic) == set(range(count)) - hopeless, "all that can be done is done"
    letters = [ids[metadata.failure_id] for _, metadata in evidence.dead()]
    assert set(letters) == hopeless, "all that cannot is dead"
    repeated = evidence.repeated_handoffs()
    runs = len(stage.service.of(topic)) - len({(v.failure_id, v.attempt) for v in stage.service.of(topic)})
    print(f"{count} records: {len(repeated)} hand-offs repeated, {runs} runs repeated")  # noqa: T201 - for the report
    assert copies or not repeated
    due = evidence.due_times()
    later = [visit for visit in stage.service.of(topic) if visit.attempt > 1]
    if copies:  # a repeated hand-off has a due time of its own: each of them counts from its own failure
        assert all(visit.at_ms >= (visit.due_at_ms or 0) for visit in later)
    else:
        assert all(visit.at_ms >= due[visit.failure_id, visit.attempt] for visit in later)
    for _, metadata in evidence.retries():
        assert (metadata.due_at_ms or 0) - metadata.last_failed_ms == WAITS_MS[metadata.attempt - 1]
    assert {visit.attempt for visit in stage.service.of(topic)} == {1, 2, 3}


class Fenced:
    """A client whose transaction is refused while records of it are on their way."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[None]] = []

    async def begin_transaction(self) -> None:
        """Go well."""

    def create_batch(self) -> Any:
        """Begin a batch, which takes anything."""
        return SimpleNamespace(append=lambda **_: True)

    async def send_batch(self, *_: Any, **__: Any) -> asyncio.Future[None]:
        """Take a batch."""
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]

    async def send_offsets_to_transaction(self, *_: Any) -> None:
        """Fail, and with it all that is on its way."""
        for future in self.sent:
            future.set_exception(ProducerFenced())
        self.sent.clear()
        raise ProducerFenced


async def test_a_fenced_transaction_leaves_no_traceback_behind() -> None:
    """What became of the records of a transaction that failed is looked at, or the event loop complains of each."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: complaints.append(told["message"]))
    place: Any = SimpleNamespace(
        name="app.orders.0",
        group="app",
        main=TopicPartition("orders", 0),
        changelog=TopicPartition("changelog", 0),
        topic_id="",
        changelog_id="",
        delivering=(),
    )
    nothing: Any = None
    lane = KafkaTransport(
        place=place,
        settings=nothing,
        consumer=nothing,
        reader=nothing,
        clock=VirtualClock(),
        generation=1,
        member_id="m",
    )
    client: Any = Fenced()
    lane._producer = client
    out = Outgoing(topic="app.orders.retry", partition=0, key=b"k", value=b"v", headers=())
    with pytest.raises(ProducerFenced):
        await lane.commit(LaneBatch(offsets={TopicPartition("orders", 0): 1}, publishes=[out]))
    gc.collect()
    assert complaints == []

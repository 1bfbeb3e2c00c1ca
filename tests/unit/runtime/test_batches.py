"""The batches in which a lane's records travel, to topics of ours and of others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import HandOffRefusedError, NoLeaderError, TooFewCopiesError, TopicGoneError
from retryapp.core.publication import Destination, Publication, TopicLook
from retryapp.runtime.clients.batches import DENIED, Sent, send_all

OURS, OUT = "app.orders.events", "payments"


class _Producer:
    """What batches ask of the client library; they are its own."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int, BatchBuilder]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def partitions_for(self, _topic: str) -> set[int]:
        return {0, 1}

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(10_000, 0)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[Any]:
        self.batches.append((topic, partition, batch))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    async def send(self, *records: Outgoing) -> Sent:
        return await send_all(self, records, self.over)  # type: ignore[arg-type]


@pytest.fixture
async def producer() -> _Producer:
    """A producer with batches of 10,000 bytes."""
    return _Producer()


@pytest.fixture
def destination() -> Destination:
    """A topic that is not ours, just seen."""
    made = Destination(OUT)
    made.see(TopicLook(2), 0.0)
    return made


def publications(destination: Destination, *sizes: int) -> Sequence[Publication]:
    return [Publication(OUT, 1, b"k", bytes(size), (), destination) for size in sizes]


def ours(size: int = 10) -> Outgoing:
    return Outgoing(OURS, 1, b"k", bytes(size), ())


async def told() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_brokers_time_comes_from_a_topic_of_ours(producer: _Producer, destination: Destination) -> None:
    """Whatever clock stamps the others."""
    times: list[int] = []
    sent = await producer.send(*publications(destination, 1), ours())
    assert sent.on_appended(times.append)
    for at, answer in enumerate(producer.answers):
        answer.set_result(SimpleNamespace(offset=1, timestamp=100 + at, timestamp_type=1))
    await told()
    assert times == [101]
    lone = await producer.send(*publications(destination, 1))
    assert not lone.on_appended(times.append)


FEW = "fewer copies are in sync than its min.insync.replicas asks for"


@pytest.mark.parametrize(
    ("error", "raised", "problem", "closed"),
    [
        (PolicyViolationError(), HandOffRefusedError, "its broker refuses records for it (PolicyViolationError)", {}),
        (UnknownError(), HandOffRefusedError, "its broker refuses records for it (UnknownError)", {}),
        (TopicAuthorizationFailedError(OUT), TopicAuthorizationFailedError, DENIED, {}),
        (NotEnoughReplicasError(), TooFewCopiesError, None, {1: FEW}),
        (NotEnoughReplicasAfterAppendError(), TooFewCopiesError, None, {1: FEW}),
        (LeaderNotAvailableError(), NoLeaderError, None, {1: "it has no leader"}),
        (KafkaError(), KafkaError, None, {}),
        (ConnectionError(), ConnectionError, None, {}),
    ],
)
async def test_what_a_broker_refuses_is_noted(
    producer: _Producer,
    destination: Destination,
    error: Exception,
    raised: type[Exception],
    problem: str | None,
    closed: dict[int, str],
) -> None:
    """Of its topic or of one partition: else the lane would fail again and again. What passes by itself is not."""
    sent = await producer.send(*publications(destination, 1), ours())
    for answer in producer.answers:
        answer.set_exception(error)
    with pytest.raises(raised, match=OUT if closed else None):
        await sent.offsets()
    await told()
    destination.doubt(1)
    assert destination.fresh(1.0) is bool(problem or closed), "of that another look may know nothing"
    assert (destination.problem, destination.closed) == (problem, closed)


@pytest.mark.parametrize(
    ("error", "named", "text"),
    [
        (NotEnoughReplicasError, TooFewCopiesError,
         rf"{OURS}\[1\] takes no records .*min\.insync\.replicas.* brokers that are away"),
        (LeaderNotAvailableError, NoLeaderError, rf"{OURS}\[1\] takes no records: it has no leader.* that are away"),
        (NotLeaderForPartitionError, TopicGoneError, rf"topic {OURS} is not there.*'retryapp topics create"),
    ],
)  # fmt: skip
async def test_a_topic_that_takes_nothing_is_named(
    producer: _Producer, error: type[KafkaError], named: type[Exception], text: str
) -> None:
    """The client's own words name neither topic nor remedy."""
    sent = await producer.send(ours())
    producer.answers[0].set_exception(error())
    with pytest.raises(named, match=text):
        await sent.offsets()


async def test_a_topic_that_is_not_there_is_named(producer: _Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks for it as long as for an answer, and then does not say which one."""

    async def gone(*_: Any, **__: Any) -> None:
        raise UnknownTopicOrPartitionError

    monkeypatch.setattr(producer, "send_batch", gone)
    with pytest.raises(TopicGoneError, match=rf"topic {OURS} is not there"):
        await producer.send(ours())


async def test_a_refusal_names_the_topic_and_the_size_of_the_record(producer: _Producer) -> None:
    """The broker answers a batch with a code only."""
    sent = await producer.send(ours(), ours(3_000))
    producer.answers[0].set_exception(MessageSizeTooLargeError())
    with pytest.raises(HandOffRefusedError) as raised:
        await sent.offsets()
    assert (raised.value.topic, raised.value.problem) == (OURS, "MessageSizeTooLargeError")
    assert 3_000 < (raised.value.size or 0) < 3_100


async def test_who_waits_for_a_batch_hears_of_a_transaction_that_failed(producer: _Producer) -> None:
    """The client never answers the batches of a denied topic."""
    sent = await producer.send(ours())
    waiting = asyncio.create_task(sent.offsets())
    await told()
    producer.over.set_exception(TopicAuthorizationFailedError({OURS, OUT}))
    with pytest.raises(TopicAuthorizationFailedError):
        await waiting

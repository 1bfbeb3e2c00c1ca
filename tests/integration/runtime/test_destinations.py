"""Looks at topics of others, on a real broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from aiokafka import AIOKafkaProducer

from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.publication import Destination, Publication, TopicLook
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.runtime.clients.batches import send_all
from retryapp.runtime.clients.destinations import KafkaDestinations
from retryapp.runtime.clients.lifecycle import ClientSettings

MakeTopic = Callable[..., str]


@pytest.fixture
def reader(connection: KafkaConnection) -> KafkaDestinations:
    """A reader of the test session's broker."""
    return KafkaDestinations(lambda: connection)


@pytest.fixture
async def producer(settings: ClientSettings, bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        enable_idempotence=True,
        bootstrap_servers=bootstrap,
        max_batch_size=settings.max_batch_size,
        compression_type=settings.compression_type,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def test_a_topic_is_seen_with_its_limits(
    admin: KafkaAdmin, make_topic: MakeTopic, reader: KafkaDestinations
) -> None:
    """Partitions, largest record, whether it wants keys, its id; what is not there is not made by the question."""
    plain = make_topic(3, max_message_bytes="12345")
    compacted = make_topic(1, cleanup_policy="compact,delete", max_message_bytes="5000")
    ids = {name: state.topic_id for name, state in admin.describe_topics([plain, compacted]).items()}
    assert await reader.look(plain) == TopicLook(3, max_bytes=12_345, topic_id=ids[plain])
    assert await reader.look(compacted) == TopicLook(1, max_bytes=5_000, compacted=True, topic_id=ids[compacted])
    for _ in range(2):
        assert await reader.look(f"{plain}-not") is None
    assert f"{plain}-not" not in admin.topic_names()


async def test_a_topic_that_asks_for_more_copies_than_it_may_have_takes_records(
    make_topic: MakeTopic, reader: KafkaDestinations, producer: AIOKafkaProducer
) -> None:
    """As many as it may have are enough to this broker."""
    topic = make_topic(1, min_insync_replicas="2")
    destination, look = Destination(topic), await reader.look(topic)
    assert look is not None
    assert (look.problem, look.closed) == (None, {})
    destination.see(look, 0.0)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the end of a transaction
    sent = await send_all(producer, [Publication(topic, 0, None, b"x", (), destination)], never)
    assert await sent.offsets() == [0]


async def test_a_topic_that_grows_and_takes_little_is_given_what_it_takes(
    admin: KafkaAdmin, make_topic: MakeTopic, reader: KafkaDestinations, producer: AIOKafkaProducer
) -> None:
    """A partition that its producer has never seen, batches of no more than the limit, a limit that nobody tells."""
    topic = make_topic(1, max_message_bytes="1000")
    destination = Destination(topic)
    destination.see(await reader.look(topic), 0.0)

    def records(partition: int, *sizes: int) -> list[Publication]:
        values = [random.Random(seed).randbytes(size) for seed, size in enumerate(sizes)]  # nothing to compress
        return [Publication(topic, partition, None, value, (), destination) for value in values]

    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the end of a transaction
    sent = await send_all(producer, records(0, *[400] * 5), never)
    assert await sent.offsets() == [0, 1, 2, 3, 4]
    admin.grow(topic, 3)
    admin.wait_for_topics([topic], {topic: 3})
    destination.see(await reader.look(topic), 0.0)
    assert await (await send_all(producer, records(2, 10), never)).offsets() == [0]
    destination = Destination(topic)
    destination.see(TopicLook(3), 0.0)
    for sizes in ([400] * 5, [5_000]):
        with pytest.raises(HandOffRefusedError, match="MessageSizeTooLargeError"):
            await (await send_all(producer, records(1, *sizes), never)).offsets()
        await asyncio.sleep(0)
    assert destination.batch_bytes == 0
    refused, fits = records(1, 5_000, 400)
    assert destination.max_bytes == refused.size - 1
    assert destination.objection(None, None, refused.size) is not None
    assert destination.objection(None, None, fits.size) is None
    assert await (await send_all(producer, records(0, *[400] * 3), never)).offsets() == [5, 6, 7], "each by itself"

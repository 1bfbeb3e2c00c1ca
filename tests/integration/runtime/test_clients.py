"""Clients end in bounded time and leave no task and no connection behind, whatever state they are in."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)

from retryapp.ports import TopicPartition
from retryapp.runtime.clients import lifecycle
from retryapp.runtime.clients.lifecycle import end


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """Check that no task of this test outlives it."""
    before = asyncio.all_tasks()
    yield
    before |= {task for task in (asyncio.current_task(),) if task is not None}
    while left := asyncio.all_tasks() - before:
        await asyncio.wait(left)


@pytest.fixture
async def unseen() -> AsyncIterator[list[Any]]:
    """Collect what the event loop would log of errors that no code retrieved; there must be none."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    yield complaints
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    assert complaints == []


async def started(bootstrap: str) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex, retry_backoff_ms=10, linger_ms=0
    )
    await producer.start()
    return producer


async def in_transaction(bootstrap: str, topic: TopicPartition) -> AIOKafkaProducer:
    """Start a producer, which has sent a record in a transaction."""
    producer = await started(bootstrap)
    await producer.begin_transaction()
    await producer.send_and_wait(topic.topic, b"v", partition=0)
    return producer


def fall_silent(client: Any) -> list[Any]:
    """Keep every connection open and let nothing through: requests are never answered, as by a broker that hangs."""
    connections = list(client._conns.values())
    for connection in connections:
        connection._writer.write = lambda _data: None
    return connections


async def ended(client: Any, connections: list[Any]) -> None:
    await end(client, "c")
    assert [connection for connection in connections if connection.connected()] == []


@pytest.mark.usefixtures("nothing_left")
async def test_a_producer_that_has_nothing_to_do_ends_by_itself(
    bootstrap: str, topic: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, what it has sent is there."""
    monkeypatch.setattr(lifecycle, "STOP_S", None)
    producer = await started(bootstrap)
    async with producer.transaction():
        await producer.send_and_wait(topic.topic, b"v", partition=0)
    connections = list(producer.client._conns.values())
    await ended(producer, connections)


@pytest.mark.usefixtures("nothing_left")
async def test_a_producer_whose_broker_does_not_answer_ends(bootstrap: str, topic: TopicPartition) -> None:
    """In the middle of a transaction, with a record under way; who waits for the record hears of it."""
    producer = await in_transaction(bootstrap, topic)
    connections = fall_silent(producer.client)
    sent = await producer.send(topic.topic, b"w", partition=0)
    await asyncio.sleep(0.1)
    await ended(producer, connections)
    assert producer._sender.sender_task.done()
    with pytest.raises(KafkaError):
        await sent


@pytest.mark.usefixtures("nothing_left", "unseen")
async def test_a_producer_that_ends_in_a_transaction_leaves_no_error_for_the_log(
    bootstrap: str, topic: TopicPartition
) -> None:
    """The library fails the transaction when it ends, and nothing waits for it any more."""
    producer = await started(bootstrap)
    async with producer.transaction():
        await producer.send_and_wait(topic.topic, b"v", partition=0)
    connections = fall_silent(producer.client)

    async def closed(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KafkaConnectionError("closed")

    producer._sender._coordinators.clear()
    producer.client.coordinator_lookup = closed
    await producer.begin_transaction()
    sent = await producer.send(topic.topic, b"v", partition=0)  # waits for the partition to join the transaction
    offsets = {ClientTopicPartition(*topic): 1}
    committing = asyncio.create_task(producer.send_offsets_to_transaction(offsets, "group"))
    await asyncio.sleep(0.1)
    committing.cancel()  # as the deadline of a commit does
    await ended(producer, connections)
    assert sent.exception() is not None
    assert committing.cancelled()


@pytest.mark.usefixtures("nothing_left", "unseen")
@pytest.mark.parametrize("error", [TransactionalIdAuthorizationFailed, ProducerFenced])
async def test_a_producer_that_was_refused_leaves_no_error_for_the_log(
    bootstrap: str, topic: TopicPartition, error: type[Exception]
) -> None:
    """The library fails what it has not sent, and ends by itself: the lane says why, in one line."""
    producer = await started(bootstrap)

    async def refused(_tps: Any) -> Any:
        raise error

    producer._sender._do_add_partitions_to_txn = refused
    await producer.begin_transaction()
    sent = await producer.send(topic.topic, b"v", partition=0)
    with pytest.raises(error):
        await sent
    with pytest.raises(error):
        producer._txn_manager.wait_for_transaction_end().result()
    await ended(producer, list(producer.client._conns.values()))


@pytest.mark.usefixtures("nothing_left")
async def test_a_producer_whose_broker_is_gone_ends(bootstrap: str, topic: TopicPartition) -> None:
    """It looks for the coordinator again and again; that ends too."""
    producer = await in_transaction(bootstrap, topic)

    async def no_connection(*_: Any, **_named: Any) -> None:
        await asyncio.sleep(0.01)

    producer.client._get_conn = no_connection
    connections = list(producer.client._conns.values())
    for connection in connections:
        connection.close()
    sent = await producer.send(topic.topic, b"w", partition=0)
    committing = asyncio.create_task(producer.commit_transaction())
    await asyncio.sleep(0.2)
    assert not sent.done()
    committing.cancel()
    await ended(producer, connections)
    assert producer._sender.sender_task.done()
    await asyncio.gather(committing, return_exceptions=True)


@pytest.mark.usefixtures("nothing_left")
async def test_a_consumer_whose_stop_hangs_is_taken_apart(bootstrap: str, topic: TopicPartition) -> None:
    """Its fetcher may swallow the one cancellation that it gets."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([ClientTopicPartition(*topic)])
    consumer.seek(ClientTopicPartition(*topic), 0)
    await consumer.getmany(timeout_ms=200)
    fetching: asyncio.Task[None] = consumer._fetcher._fetch_task
    fetching.cancel()
    await asyncio.wait({fetching})

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    consumer._fetcher._fetch_task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await ended(consumer, list(consumer._client._conns.values()))
    assert consumer._fetcher._fetch_task.done()


@pytest.mark.usefixtures("nothing_left")
async def test_an_end_goes_on_when_who_waits_for_it_is_cancelled(bootstrap: str, topic: TopicPartition) -> None:
    """A lane that is closed in a hurry leaves nothing behind either."""
    producer = await in_transaction(bootstrap, topic)
    connections = fall_silent(producer.client)
    await producer.send(topic.topic, b"w", partition=0)
    ending = end(producer, "c")
    waiting = asyncio.create_task(asyncio.wait({ending}))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait({waiting})
    await ending
    assert [connection for connection in connections if connection.connected()] == []

"""Our agents: Faust's own, one per topic, which take batches from memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka_fakes import until

from retryapp.engine.worker.feed import Batch
from retryapp.ports import TopicPartition
from retryapp.runtime.app import Runtime
from retryapp.runtime.faust.agents import IntakeChannel, register_agent
from retryapp.runtime.faust.consumer import RetryConsumer

TP = TopicPartition("clicks", 0)


def batch(session: int) -> Batch:
    return Batch(TP, session, [])


async def test_faust_has_an_agent_for_first_deliveries_and_one_for_due_rows(runtime: Runtime) -> None:
    """`faust agents` lists them by name and topic, and the worker starts, watches and restarts them."""
    agents = {name: agent.channel.get_topic_name() for name, agent in runtime.app.agents.items()}
    topics = ("orders", "app.orders.retry")
    assert agents == {f"retryapp.{topic}": topic for topic in topics}


@pytest.fixture
def taken() -> list[int]:
    return []


@pytest.fixture
async def channel(consumer: RetryConsumer, taken: list[int]) -> AsyncIterator[IntakeChannel]:
    """The way to an agent that runs; its app has a consumer, as Faust's streams want one."""
    app: Any = consumer.app
    made = register_agent(app, "clicks", lambda batch: taken.append(batch.session))
    agent = app.agents["retryapp.clicks"]
    await agent.start()
    await until(lambda: made._subscribers)
    yield made
    await agent.stop()


async def test_a_rebalance_takes_no_batch_away(
    consumer: RetryConsumer, channel: IntakeChannel, taken: list[int]
) -> None:
    """Faust stops and empties the queues that it manages; a batch that vanished would hold its partition up."""
    channel.put_now(batch(1))
    consumer.app.flow_control.suspend()
    consumer.app.flow_control.resume()
    consumer.app.flow_control.suspend()
    channel.put_now(batch(2))
    await until(lambda: taken == [1, 2])


async def test_one_turn_of_the_event_loop_takes_all_that_waits(channel: IntakeChannel, taken: list[int]) -> None:
    """Faust takes one value in each; with many partitions under load a record would wait for a turn of each of them."""
    for session in range(10):
        channel.put_now(batch(session))
    while not taken:  # noqa: ASYNC110 - it is the turns that count
        await asyncio.sleep(0)
    assert taken == [*range(10)]

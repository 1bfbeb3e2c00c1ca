"""A Faust app with one handler, its real consumer on a client that a test scripts, and records as it has them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiokafka
import faust
import pytest
from aiokafka.structs import ConsumerRecord
from faust.types import TP

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kafka_fakes as fakes
from kafka_fakes import Kafka, MakeLane, Producer, ScriptedClient, ScriptedThread, Topics

from retryapp import Retries, RetryPolicy
from retryapp.core.record import Record
from retryapp.ports import LaneBatch, LaneReceipt
from retryapp.runtime import transport
from retryapp.runtime.app import Runtime
from retryapp.runtime.clients.lifecycle import ClientSettings
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.faust.consumer_thread import RetryConsumerThread
from retryapp.runtime.transport import KafkaTransport, LanePlace
from retryapp.runtime.worker import runtime_of
from retryapp.testing import MemoryDestinations, VirtualClock

MAIN = TP("orders", 0)
USERS = TP("clicks", 0)

MakeRecords = Callable[..., list[Any]]


@pytest.fixture
async def runtime(tmp_path: Path) -> Runtime:
    """The runtime of an app with one handler; nothing is started and nothing is asked of a broker."""
    app = faust.App("app", broker="kafka://127.0.0.1:1", store="memory://", datadir=str(tmp_path))
    retries = Retries(app)

    @retries.handler("orders", policy=RetryPolicy("1s 10s"))
    async def handle(_value: bytes) -> None:
        pass

    app.finalize()
    made = runtime_of(app)
    assert made is not None
    return made


@pytest.fixture
async def consumer(runtime: Runtime) -> RetryConsumer:
    """The app's consumer, settled, with a partition of ours and one of the user's, both flowing."""
    made = runtime.app.consumer
    assert isinstance(made, RetryConsumer)
    made._thread.thread_loop.close()  # never run
    made._thread = ScriptedThread(made)  # type: ignore[assignment]
    made._thread.client.assigned = {aiokafka.TopicPartition(*tp) for tp in (MAIN, USERS)}  # type: ignore[attr-defined]
    made._set_active_tps({MAIN, USERS})
    made.settled = True
    return made


@pytest.fixture
def thread(consumer: RetryConsumer) -> Any:
    return consumer._thread


@pytest.fixture
async def stopped_thread(consumer: RetryConsumer) -> AsyncIterator[RetryConsumerThread]:
    """The real consumer's thread, which nobody has started."""
    made = RetryConsumerThread(consumer)
    yield made
    made.thread_loop.close()


@pytest.fixture
def client(thread: Any) -> ScriptedClient:
    return thread.client  # type: ignore[no-any-return]


@pytest.fixture
def records() -> MakeRecords:
    """Make records with offsets from `start`, each with a value of `size` bytes."""

    def make(tp: Any, count: int = 1, *, start: int = 0, size: int = 1) -> list[Any]:
        offsets, at_ms, value = range(start, start + count), 1_700_000_000_000, b"x" * size
        if tp.topic == "orders":  # ours
            return [Record(*tp, offset, at_ms, None, value) for offset in offsets]
        return [ConsumerRecord(*tp, offset, at_ms, 0, None, value, None, 0, size, ()) for offset in offsets]

    return make


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    made.acknowledged.set()
    monkeypatch.setattr(transport, "AIOKafkaProducer", lambda **options: Producer(made, **options))
    return made


@pytest.fixture
def topics() -> Topics:
    """Empty topics of ours, and committed offsets of a lane in good order."""
    return Topics()


@pytest.fixture
def make_lane(kafka: Kafka, tmp_path: Path) -> MakeLane:
    """Make a lane, whose assignment was that of generation 3."""

    def make(**parts: Any) -> KafkaTransport:
        place = LanePlace(
            name="app.orders.1",
            group="app",
            partition=1,
            sources=[fakes.MAIN],
            main=fakes.MAIN,
            changelog=fakes.CHANGELOG,
            dlqs=[fakes.DLQ],
            store_dir=tmp_path,
        )
        settings = ClientSettings(
            connection={"bootstrap_servers": ["kafka:9092"], "security_protocol": "SSL"},
            client_id="shop",
            request_timeout_ms=1_234,
            max_batch_size=5_678,
            max_request_size=9_012,
        )
        anything: Any = kafka
        parts = {
            "consumer": anything,
            "reader": anything,
            "clock": VirtualClock(),
            "topics": MemoryDestinations({}),
            **parts,
        }
        return KafkaTransport(place=place, settings=settings, generation=3, member_id="assigned", **parts)

    return make


@pytest.fixture
def lane(make_lane: MakeLane) -> KafkaTransport:
    return make_lane()


@pytest.fixture
def only_noted(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what lanes commit be `noted`, and leave no record on the topics."""

    async def commit(_self: KafkaTransport, batch: LaneBatch) -> LaneReceipt:
        topics.noted.append(batch)
        return LaneReceipt([], None)

    monkeypatch.setattr(KafkaTransport, "commit", commit)


@pytest.fixture
def no_fausts_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what Faust itself does in a rebalance."""

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_assigned", nothing)
    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_revoked", nothing)

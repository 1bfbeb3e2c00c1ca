"""A Faust app with one handler, its real consumer on a client that a test scripts, and records as it has them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka
import faust
import pytest
from aiokafka.consumer.subscription_state import TopicPartitionState
from faust.types import TP

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lane_clients
from lane_clients import Kafka, MakeLane, Producer

from retryapp import Retries, RetryPolicy
from retryapp.engine.intake import Stamped
from retryapp.runtime import publisher
from retryapp.runtime.app import Runtime
from retryapp.runtime.clients import ClientSettings
from retryapp.runtime.consumer import RetryConsumer
from retryapp.runtime.consumer_thread import RetryConsumerThread
from retryapp.runtime.publisher import KafkaTransport, LanePlace
from retryapp.runtime.worker import runtime_of
from retryapp.testing import VirtualClock

MAIN = TP("orders", 0)
USERS = TP("clicks", 0)

MakeRuntime = Callable[..., Runtime]
MakeRecords = Callable[..., list[Any]]


@dataclass
class ScriptedClient:
    """What the consumer asks of the client library: remembers pauses and positions, refuses what it does not own."""

    assigned: set[Any] = field(default_factory=set)
    paused: set[Any] = field(default_factory=set)
    positions: dict[Any, int] = field(default_factory=dict)
    states: dict[Any, TopicPartitionState] = field(default_factory=dict)
    committed: dict[Any, int] = field(default_factory=dict)
    asked_for_committed: int = 0
    generation: int = 1
    member_id: str = "member"
    unseen: list[set[str]] = field(default_factory=list)
    """Topics that the client does not know: now, and after each further look at the broker."""
    looked: int = 0
    member: bool = True
    """What the coordinator answers to a heartbeat."""

    async def _do_heartbeat(self) -> bool:
        return self.member

    def subscription(self) -> set[str]:
        """Return what the group reads."""
        return {MAIN.topic, USERS.topic}

    @property
    def _client(self) -> Any:
        return SimpleNamespace(cluster=self, force_metadata_update=self._look)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic that is known."""
        return None if self.unseen and topic in self.unseen[0] else {0}

    async def _look(self) -> bool:
        self.looked += 1
        self.unseen.pop(0)
        return True

    def assignment(self) -> set[Any]:
        """Return what the group gave to this client."""
        return set(self.assigned)

    def pause(self, *tps: Any) -> None:
        """Stop fetching."""
        self._owned(tps)
        self.paused.update(tps)

    def resume(self, *tps: Any) -> None:
        """Fetch again."""
        self._owned(tps)
        self.paused.difference_update(tps)

    def seek(self, tp: Any, offset: int) -> None:
        """Set a position."""
        self.state_value(tp).seek(offset)
        self.positions[tp] = offset

    async def seek_to_committed(self, *tps: Any) -> dict[Any, int | None]:
        """Set positions to what is committed."""
        self.asked_for_committed += 1
        self._owned(tps)
        return {tp: self.committed.get(tp) for tp in tps or self.assigned}

    def _owned(self, tps: Any) -> None:
        for tp in tps:
            if tp not in self.assigned:
                raise ValueError(f"{tp} is not assigned")

    @property
    def _coordinator(self) -> Any:
        return self

    @property
    def _subscription(self) -> Any:
        return SimpleNamespace(_last_fetch_ended=0.0, subscription=SimpleNamespace(assignment=self))

    def state_value(self, tp: Any) -> TopicPartitionState:
        """Return what the client library keeps of a partition: its own class, with the position."""
        self._owned([tp])
        if tp not in self.states:
            self.states[tp] = TopicPartitionState(None)
        return self.states[tp]


@dataclass(slots=True)
class ScriptedThread:
    """The consumer's thread, on the test's loop. `fetches` are what the broker has to give, one a poll."""

    consumer: RetryConsumer
    client: ScriptedClient = field(default_factory=ScriptedClient)
    fetches: list[dict[TP, list[Any]]] = field(default_factory=list)
    positions: dict[Any, int] = field(default_factory=dict)
    """What each fetch carries."""
    polled: list[set[TP]] = field(default_factory=list)
    """Partitions that each poll asked for."""
    hand_over: asyncio.Event = field(default_factory=asyncio.Event)
    """What was fetched reaches the main loop once this is set."""
    fetched: asyncio.Event = field(default_factory=asyncio.Event)
    thread_loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        """Hand over at once unless a test says otherwise."""
        self.hand_over.set()

    def _ensure_consumer(self) -> ScriptedClient:
        return self.client

    def assignment(self) -> set[TP]:
        """Return what the group gave to this client."""
        return {TP(*tp) for tp in self.client.assigned}

    async def seek_wait(self, positions: dict[TP, int]) -> None:
        """Set positions."""
        for tp, offset in positions.items():
            self.client.seek(aiokafka.TopicPartition(*tp), offset)

    def highwater(self, _tp: TP) -> int:
        """Return the end of a partition; nobody here cares."""
        return 0

    async def getmany(self, active: set[TP], _timeout: float) -> Any:
        """Poll once; the stamp is taken before the result travels to the main loop, as in the real thread."""
        self.polled.append(set(active))
        found = self.fetches.pop(0) if self.fetches else {}
        records = Stamped({aiokafka.TopicPartition(*tp): batch for tp, batch in found.items()})
        records.stamp = dict(self.consumer.intake.epoch)
        records.positions = dict(self.positions)
        self.fetched.set()
        await self.hand_over.wait()
        return records

    async def commit(self, offsets: dict[TP, int]) -> bool:
        """Commit offsets of the user's topics."""
        self.client.committed.update({aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()})
        return True


@pytest.fixture
def make_runtime(tmp_path: Path) -> MakeRuntime:
    """Make the runtime of an app with one handler; nothing is started and nothing is asked of a broker."""

    def make(**options: Any) -> Runtime:
        app = faust.App("app", broker="kafka://127.0.0.1:1", store="memory://", datadir=str(tmp_path))
        retries = Retries(app)

        @retries.handler("orders", policy=RetryPolicy("1s 10s"), **options)
        async def handle(_value: bytes) -> None:
            """Do nothing."""

        app.finalize()
        runtime = runtime_of(app)
        assert runtime is not None
        return runtime

    return make


@pytest.fixture
async def runtime(make_runtime: MakeRuntime) -> Runtime:
    """The runtime of an app with one handler."""
    return make_runtime()


@pytest.fixture
async def consumer(runtime: Runtime) -> RetryConsumer:
    """The app's consumer, settled, with a partition of ours and one of the user's, both flowing."""
    made = runtime.app.consumer
    assert isinstance(made, RetryConsumer)
    made._thread.thread_loop.close()  # never run
    made._thread = ScriptedThread(made)  # type: ignore[assignment]
    assign(made, MAIN, USERS)
    made.settled = True
    return made


def assign(consumer: RetryConsumer, *tps: TP) -> None:
    """Give partitions to the consumer, as after a rebalance."""
    thread: Any = consumer._thread
    thread.client.assigned = {aiokafka.TopicPartition(*tp) for tp in tps}
    consumer._set_active_tps(set(tps))


@pytest.fixture
def thread(consumer: RetryConsumer) -> Any:
    """The consumer's scripted thread."""
    return consumer._thread


@pytest.fixture
async def stopped_thread(consumer: RetryConsumer) -> AsyncIterator[RetryConsumerThread]:
    """The real consumer's thread, which nobody has started."""
    made = RetryConsumerThread(consumer)
    yield made
    made.thread_loop.close()


@pytest.fixture
def client(thread: Any) -> ScriptedClient:
    """The scripted client library."""
    found: ScriptedClient = thread.client
    return found


@pytest.fixture
def records() -> MakeRecords:
    """Make records with offsets from `start`, each with a value of `size` bytes."""

    def make(tp: Any, count: int = 1, *, start: int = 0, size: int = 1) -> list[Any]:
        return [
            SimpleNamespace(
                topic=tp[0],
                partition=tp[1],
                offset=offset,
                timestamp=1_700_000_000_000,
                timestamp_type=0,
                key=None,
                value=b"x" * size,
                headers=(),
                checksum=None,
                serialized_key_size=0,
                serialized_value_size=size,
            )
            for offset in range(start, start + count)
        ]

    return make


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A broker that acknowledges at once."""
    made = Kafka()
    made.acknowledged.set()
    monkeypatch.setattr(publisher, "AIOKafkaProducer", lambda **options: Producer(made, **options))
    return made


@pytest.fixture
def make_lane(kafka: Kafka, tmp_path: Path) -> MakeLane:
    """Make a lane, whose assignment was that of generation 3."""

    def make(**parts: Any) -> KafkaTransport:
        place = LanePlace(
            name="app.orders.1",
            group="app",
            partition=1,
            sources=[lane_clients.MAIN, lane_clients.RETRY, lane_clients.REDELIVERY],
            main=lane_clients.MAIN,
            changelog=lane_clients.CHANGELOG,
            dlq=lane_clients.DLQ,
            store_dir=tmp_path,
        )
        settings = ClientSettings(
            connection={"bootstrap_servers": "kafka:9092", "security_protocol": "SSL"},
            client_id="shop",
            request_timeout_ms=1_234,
            max_batch_size=5_678,
            max_request_size=9_012,
        )
        anything: Any = kafka
        parts = {"consumer": anything, "reader": anything, "clock": VirtualClock(), **parts}
        return KafkaTransport(place=place, settings=settings, generation=3, member_id="assigned", **parts)

    return make


@pytest.fixture
def lane(make_lane: MakeLane) -> KafkaTransport:
    """A lane on that broker."""
    return make_lane()


@pytest.fixture
def no_fausts_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what Faust itself does in a rebalance."""

    async def nothing(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_assigned", nothing)
    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_revoked", nothing)

"""The broker and the client library as a lane's clients ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import NoError, TopicAuthorizationFailedError

from retryapp.core import marks
from retryapp.core.hops import Outgoing
from retryapp.ports import LaneBatch, Removal, Row, TopicPartition
from retryapp.runtime.publisher import KafkaTransport

MakeLane = Callable[..., KafkaTransport]

MAIN, RETRY = TopicPartition("orders", 1), TopicPartition("app.orders.retry", 1)
REDELIVERY, DLQ = TopicPartition("app.orders.redelivery", 1), TopicPartition("app.orders.dlq", 1)
CHANGELOG = TopicPartition("app.orders.pending.changelog", 1)
BATCH = LaneBatch(
    publishes=[Outgoing(RETRY.topic, 1, b"k", b"late", ()), Outgoing(DLQ.topic, 1, b"k", b"dead", ())],
    puts=[Row(b"row", b"waits", "1m")],
    removes=[Removal(b"fired", "1m")],
    offsets={MAIN: 8, REDELIVERY: 3},
)
PUBLISHED = [(RETRY.topic, b"k", b"late"), (DLQ.topic, b"k", b"dead")]
LOGGED = [(CHANGELOG.topic, b"row", b"waits"), (CHANGELOG.topic, b"fired", None)]


def progress(offsets: Mapping[TopicPartition, int]) -> Any:
    """Return the changelog record that writes offsets down."""
    return CHANGELOG.topic, marks.PROGRESS, marks.progress_value({tp.topic: at for tp, at in offsets.items()}, "")


WRITTEN_DOWN = progress(BATCH.offsets)


@dataclass
class Kafka:
    """The broker as a lane's clients ask it, and the client library itself."""

    asked: list[Any] = field(default_factory=list)
    """Everything that was asked of producers and the coordinator, in order."""
    producers: list[Producer] = field(default_factory=list)
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    """Once set, records are acknowledged as they come."""
    refused: Exception | None = None
    """What happens to records instead."""
    answer: type[BaseException] = NoError
    """The coordinator's, to everything."""
    denied: set[str] | None = None
    """Topics that no transaction may have."""
    batch_records: int = 100
    """Room in a batch."""
    next_offset: int = 40
    timestamp_type: int = 1
    """Of our topics: when the broker appended a record."""
    notes: list[dict[str, str]] = field(default_factory=list)
    """What was written beside offsets, by topic, of each transaction that had some."""
    held: list[TopicPartition] = field(default_factory=list)
    placed: list[Mapping[TopicPartition, int]] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)
    """When the coordinator was asked what it said yes to."""

    # the consumer that all lanes of a worker share, and its coordinator, which has rejoined since the assignment

    group_id = "app"
    generation = 9
    member_id = "rejoined"

    async def in_thread(self, function: Callable[[Any], Any]) -> Any:
        """See `RetryConsumer.in_thread`."""
        return await function(SimpleNamespace(_coordinator=self))

    def heard(self, asked_s: float) -> None:
        """See `RetryConsumer.heard`."""
        self.heard_s.append(asked_s)

    async def hold(self, tps: list[TopicPartition]) -> None:
        """See `RetryConsumer.hold`."""
        self.held.extend(tps)

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `RetryConsumer.reposition`."""
        self.asked.append("flow")
        self.placed.append(starts)

    async def ensure_coordinator_known(self) -> None:
        """Find the coordinator."""

    async def _send_req(self, request: Any) -> Any:
        fields = {name.removeprefix("_"): value for name, value in vars(request).items()}
        self.asked.append((type(request).__name__, fields))
        code: int = self.answer.errno  # type: ignore[attr-defined]
        return SimpleNamespace(error_code=code, topics=[(MAIN.topic, [(1, NoError.errno), (1, code)])])


@dataclass
class Batch:
    """A batch of the client library."""

    room: int
    records: list[tuple[Any, Any]] = field(default_factory=list)

    def append(self, *, timestamp: None, key: Any, value: Any, headers: list[Any]) -> object | None:
        """Take a record where there is room."""
        if len(self.records) == self.room:
            return None
        self.records.append((key, value))
        return self


class Producer:
    """A producer of the client library; see `Kafka` for what it does."""

    def __init__(self, kafka: Kafka, **options: Any) -> None:
        self.options = options
        self.started = False
        self.client = SimpleNamespace(_get_conn=None)
        self._kafka = kafka
        kafka.producers.append(self)

    async def start(self) -> None:
        """Connect; with a transactional id this is what fences."""
        self.started = True

    async def stop(self) -> None:
        """End."""

    async def begin_transaction(self) -> None:
        """Begin."""
        self._kafka.asked.append("begin")

    async def partitions_for(self, _topic: str) -> set[int]:
        """Return the partitions that it knows of a topic."""
        return {0, 1}

    def create_batch(self) -> Batch:
        """Begin a batch."""
        return Batch(self._kafka.batch_records)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[Any]:
        """Take a batch; it is acknowledged when the broker likes, and its records lie one behind the other."""
        assert partition == 1
        self._kafka.asked.extend((topic, key, value) for key, value in batch.records)
        offset = self._kafka.next_offset
        self._kafka.next_offset += len(batch.records)
        return asyncio.ensure_future(self._acknowledge(offset))

    async def _acknowledge(self, offset: int) -> Any:
        await self._kafka.acknowledged.wait()
        if self._kafka.refused is not None:
            raise self._kafka.refused
        return SimpleNamespace(offset=offset, timestamp=7_000 + offset, timestamp_type=self._kafka.timestamp_type)

    async def send_offsets_to_transaction(self, offsets: dict[Any, Any], group: str) -> None:
        """Take offsets."""
        if self._kafka.denied is not None:
            raise TopicAuthorizationFailedError(self._kafka.denied)
        self._kafka.notes.append({tp.topic: found.metadata for tp, found in offsets.items()})
        self._kafka.asked.append((group, {TopicPartition(*tp): found.offset for tp, found in offsets.items()}))

    async def commit_transaction(self) -> None:
        """Commit."""
        self._kafka.asked.append("commit")

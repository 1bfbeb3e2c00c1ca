"""The client library and the broker as a test scripts them: for the consumer, its thread, and a lane's clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

import aiokafka
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.errors import NoError
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from retryapp.core import marks
from retryapp.core.hops import Outgoing
from retryapp.core.record import Headers
from retryapp.engine.worker.intake import Stamped
from retryapp.ports import LaneBatch, Row, Stuck, TopicPartition
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.transport import KafkaTransport

MakeLane = Callable[..., KafkaTransport]

MAIN, RETRY = TopicPartition("orders", 1), TopicPartition("app.orders.retry", 1)
DLQ = TopicPartition("app.orders.dlq", 1)
CHANGELOG = TopicPartition("app.orders.pending.changelog", 1)
BATCH = LaneBatch(
    publishes=[Outgoing(RETRY.topic, 1, b"k", b"late", ()), Outgoing(DLQ.topic, 1, b"k", b"dead", ())],
    rows=[Row(b"row", b"waits", "1m"), Row(b"done", None, "1m")],
    offsets={MAIN: 8},
)
PUBLISHED = [(RETRY.topic, b"k", b"late"), (DLQ.topic, b"k", b"dead")]
LOGGED = [(CHANGELOG.topic, b"row", b"waits"), (CHANGELOG.topic, b"done", None)]


def progress(offsets: Mapping[TopicPartition, int]) -> Any:
    """Return the changelog record that writes offsets down."""
    return CHANGELOG.topic, marks.PROGRESS, marks.progress_value({tp.topic: at for tp, at in offsets.items()}, "")


WRITTEN_DOWN = progress(BATCH.offsets)


@dataclass
class Kafka:
    """The broker as a lane's clients ask it, and the client library itself."""

    asked: list[Any] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    refused: Exception | type[Exception] | None = None
    answer: type[BaseException] = NoError
    offsets_error: Exception | type[Exception] | None = None
    batch_records: int = 100
    next_offset: int = 40
    timestamp_type: int = 1
    notes: list[dict[str, str]] = field(default_factory=list)
    """What was written beside offsets, by topic, of each transaction that had some."""
    placed: list[Mapping[TopicPartition, int]] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)

    # the consumer that all lanes of a worker share, and its coordinator, which has rejoined since the assignment

    group_id = "app"
    generation = 9
    member_id = "rejoined"

    async def in_thread(self, function: Callable[[Any], Any]) -> Any:
        return await function(SimpleNamespace(_coordinator=self))

    def heard(self, asked_s: float) -> None:
        self.heard_s.append(asked_s)

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
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
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._txn_manager = SimpleNamespace(wait_for_transaction_end=lambda: self.over, error_transaction=None)
        self._sender = SimpleNamespace()
        self._kafka = kafka
        kafka.producers.append(self)

    async def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        """End."""

    async def begin_transaction(self) -> None:
        self._kafka.asked.append("begin")

    async def partitions_for(self, _topic: str) -> set[int]:
        return {0, 1}

    def create_batch(self) -> Batch:
        return Batch(self._kafka.batch_records)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[Any]:
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
        if self._kafka.offsets_error is not None:
            raise self._kafka.offsets_error
        self._kafka.notes.append({tp.topic: found.metadata for tp, found in offsets.items()})
        self._kafka.asked.append((group, {TopicPartition(*tp): found.offset for tp, found in offsets.items()}))

    async def commit_transaction(self) -> None:
        self._kafka.asked.append("commit")


@dataclass
class Found:
    """A record as the client library gives it."""

    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int = -1


@dataclass
class Topics:
    """Tail reader and coordinator over partitions in memory, which are given out in slices."""

    records: dict[TopicPartition, list[Found]] = field(default_factory=lambda: {CHANGELOG: [], DLQ: []})
    first: int = 0
    bounds_of: dict[TopicPartition, tuple[int, int]] = field(default_factory=lambda: {MAIN: (100, 150)})
    written: int = 150
    """End of the main topic with what committed readers do not see."""
    committed: dict[TopicPartition, int] = field(default_factory=lambda: {MAIN: 120})
    notes: dict[TopicPartition, str] = field(default_factory=dict)
    slice: int = 10
    stop_after: int | None = None
    """Slices until readings hang."""
    error: Exception | None = None
    starts: list[tuple[TopicPartition, int, bool]] = field(default_factory=list)
    """Every reading: partition, start, whether in the background."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    noted: list[LaneBatch] = field(default_factory=list)
    """What lanes have committed, where nothing of it is put on topics."""

    def put(
        self, tp: TopicPartition, key: bytes | None = None, value: bytes | None = b"", headers: Headers = ()
    ) -> int:
        offset = self._end(tp)
        self.records[tp].append(Found(offset, key, value, headers))
        return offset

    def _end(self, tp: TopicPartition) -> int:
        return self.records[tp][-1].offset + 1 if self.records[tp] else 0

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {tp: self.bounds_of.get(tp) or (self.first, self._end(tp)) for tp in tps}

    async def written_end(self, tp: TopicPartition) -> int:
        return self.written if tp == MAIN else self._end(tp)

    async def read(
        self, tp: TopicPartition, start: int, sink: Callable[[list[Any], int], object], *, background: bool = False
    ) -> int:
        self.starts.append((tp, start, background))
        end = self._end(tp)
        records = [record for record in self.records[tp] if record.offset >= max(start, self.first)]
        for at in range(0, len(records), self.slice):
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            if self.stop_after == 0:
                await self.go_on.wait()
            elif self.stop_after is not None:
                self.stop_after -= 1
            part = records[at : at + self.slice]
            if sink(part, part[-1].offset + 1):
                break
            await asyncio.sleep(0)
        return end

    async def in_thread(self, function: Any) -> Any:
        return await function(SimpleNamespace(_coordinator=self))

    async def fetch_committed_offsets(self, tps: Sequence[Any]) -> dict[Any, OffsetAndMetadata]:
        return {tp: OffsetAndMetadata(self.committed[tp], self.notes.get(tp, "")) for tp in tps if tp in self.committed}

    async def reposition(self, _starts: object) -> None:
        pass


async def until(condition: Callable[[], object]) -> None:
    """Let tasks run until it holds."""
    while not condition():  # noqa: ASYNC110 - any condition
        await asyncio.sleep(0)


def stuck(offset: int) -> Stuck:
    """Make what orders[0] gives where it can neither be read nor passed."""
    return Stuck("orders", 0, offset, "no codec")


# -- the worker's consumer ---------------------------------------------------------------------------------------------


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
    answers: list[Any] = field(default_factory=list)
    """What the group's coordinator answers next."""
    lost_coordinators: int = 0
    answered: dict[Any, Any] = field(default_factory=lambda: {1: SimpleNamespace(_last_action=inf)})
    """Connections with the time of their last answer; at first one that answers all the time."""
    tasks: list[asyncio.Future[None] | None] = field(default_factory=lambda: [asyncio.Future(), None])
    """The client's own: that fetches, that refreshes metadata (not begun)."""
    _closed: bool = False

    async def _do_heartbeat(self) -> bool:
        return self.member

    async def _send_req(self, _request: object) -> Any:
        return self.answers.pop(0)

    def coordinator_dead(self) -> None:
        self.lost_coordinators += 1

    def subscription(self) -> set[str]:
        return {"orders", "clicks"}

    @property
    def _client(self) -> Any:
        return SimpleNamespace(
            cluster=self, force_metadata_update=self._look, _conns=self.answered, _sync_task=self.tasks[1]
        )

    @property
    def _fetcher(self) -> Any:
        return SimpleNamespace(error_future=self.tasks[0])

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return None if self.unseen and topic in self.unseen[0] else {0}

    async def _look(self) -> bool:
        self.looked += 1
        self.unseen.pop(0)
        return True

    def assignment(self) -> set[Any]:
        return set(self.assigned)

    def pause(self, *tps: Any) -> None:
        self._owned(tps)
        self.paused.update(tps)

    def resume(self, *tps: Any) -> None:
        self._owned(tps)
        self.paused.difference_update(tps)

    def seek(self, tp: Any, offset: int) -> None:
        self.state_value(tp).seek(offset)
        self.positions[tp] = offset

    async def seek_to_committed(self, *tps: Any) -> dict[Any, int | None]:
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
    polled: list[set[TP]] = field(default_factory=list)
    hand_over: asyncio.Event = field(default_factory=asyncio.Event)
    """What was fetched reaches the main loop once this is set."""
    fetched: asyncio.Event = field(default_factory=asyncio.Event)
    thread_loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.hand_over.set()

    def _ensure_consumer(self) -> ScriptedClient:
        return self.client

    @property
    def _consumer(self) -> ScriptedClient:
        return self.client

    def assignment(self) -> set[TP]:
        return {TP(*tp) for tp in self.client.assigned}

    async def seek_wait(self, positions: dict[TP, int]) -> None:
        for tp, offset in positions.items():
            self.client.seek(aiokafka.TopicPartition(*tp), offset)

    def highwater(self, _tp: TP) -> int:
        return 0

    async def getmany(self, active: set[TP], _timeout: float) -> Any:
        self.polled.append(set(active))
        found = self.fetches.pop(0) if self.fetches else {}
        records = Stamped({aiokafka.TopicPartition(*tp): batch for tp, batch in found.items()})
        records.stamp = dict(self.consumer.intake.epoch)
        records.positions = {}
        self.fetched.set()
        await self.hand_over.wait()
        return records

    async def commit(self, offsets: dict[TP, int]) -> bool:
        self.client.committed.update({aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()})
        return True

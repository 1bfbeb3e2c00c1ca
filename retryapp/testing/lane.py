"""The engine's lane protocol on a broker in memory; each step can be made to fail or to wait.

The local store stays on its disk when the lane closes or its worker dies. Requests of a dead worker may still arrive:
see `MemoryLaneTransport.pause`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from pydantic import BaseModel
from typing_extensions import override

from retryapp.core.hops import Outgoing
from retryapp.core.record import Headers, Record, held_bytes
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.ports import Acks, Committed, LaneBatch, LaneReceipt, Sink, Standing, TopicPartition, TopicReader
from retryapp.testing.broker import MemoryBroker
from retryapp.testing.clock import VirtualClock
from retryapp.testing.tables import Disk, MemoryDeadLetterTable, MemoryPendingTable, MemorySeenTable

Request = Callable[[str, Callable[[], Any]], asyncio.Future[Any]]
"""Sends a request (its name, and what it does at the broker) and returns the answer."""


class Step(StrEnum):
    """A step of a lane (see `engine.lane.lane` for their order), or a request that it sends to the broker."""

    PROVE = "prove"
    FENCE = "fence"
    COMMITTED = "committed"
    RECOVER = "recover"
    RELEASE = "release"
    COMMIT = "commit"
    APPLY = "apply"
    HOLD = "hold"
    CLOSE = "close"

    BOUNDS = "bounds"
    TAIL = "tail"
    RECORDS = "records"
    PRODUCE = "produce"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class MemoryAcks(Acks):
    """The answer to records that were sent."""

    answer: asyncio.Future[tuple[list[int], int]] | None

    @override
    async def offsets(self) -> list[int]:
        return [] if self.answer is None else (await self.answer)[0]

    @override
    def on_appended(self, tell: Callable[[int], None]) -> bool:
        def acknowledged(done: asyncio.Future[tuple[list[int], int]]) -> None:
            if not done.cancelled() and done.exception() is None:
                tell(done.result()[1])

        if self.answer is not None:
            self.answer.add_done_callback(acknowledged)
        return self.answer is not None


class _Read(NamedTuple):
    """A record with the names of the client library's."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class MemoryReader(TopicReader):
    """Reads partitions, a slice at a time."""

    broker: MemoryBroker
    request: Request
    slice: int = 20

    @override
    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        bounds: dict[TopicPartition, tuple[int, int]] = await self.request("bounds", partial(self.broker.bounds, tps))
        return bounds

    @override
    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        first, end = (await self.bounds([tp]))[tp]
        position = max(start, first)
        while position < end:
            records, position = await self.request("tail", partial(self.broker.read, tp, position, self.slice))
            end = max(end, position)  # there may be more since
            if sink([_Read(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records], position):
                break
        return end

    @override
    async def written_end(self, tp: TopicPartition) -> int:
        return self.broker.logs[tp].end

    @override
    async def records(
        self, tp: TopicPartition, offsets: Sequence[int], *, most_bytes: int | None = None
    ) -> Mapping[int, Record]:
        found: Mapping[int, Record] = await self.request("records", partial(self.broker.pick, tp, offsets))
        sizes = accumulate((held_bytes(each.key, each.value, each.headers) for each in found.values()), initial=0)
        most = inf if most_bytes is None else most_bytes
        return {offset: record for (offset, record), size in zip(found.items(), sizes, strict=False) if size < most}


@dataclass(slots=True, kw_only=True)
class MemoryLane(LaneProtocol):
    """The primitives of `LaneProtocol` on a broker in memory; requests may take time."""

    broker: MemoryBroker
    disk: Disk
    epoch: int = -1

    @abstractmethod
    def request(self, name: str, effect: Callable[[], Any]) -> asyncio.Future[Any]:
        """Send a request; requests arrive in order."""

    @override
    async def main_id(self) -> str:
        return self.place.topic_id

    @override
    async def standing(self) -> Standing:
        heartbeat = partial(self.broker.heartbeat, self.member_id, self.generation)
        standing: Standing = await self.request(Step.PROVE, heartbeat)
        return standing

    @override
    async def start_producer(self) -> None:
        self.epoch = await self.request(Step.FENCE, partial(self.broker.init_producer, self.place.name))

    @override
    def end_producer(self) -> None:
        self.epoch = -1

    @override
    async def begin(self) -> None:
        pass

    @override
    async def send(self, records: Sequence[Outgoing]) -> MemoryAcks:
        produce, now_ms = partial(self.broker.produce, self.place.name, self.epoch, records), self.broker.now_ms
        return MemoryAcks(self.request("produce", lambda: (produce(), now_ms())) if records else None)

    @override
    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        await self.request("offsets", partial(self.broker.add_offsets, self.place.name, self.epoch, offsets))

    @override
    async def end_transaction(self) -> None:
        await self.request(Step.COMMIT, partial(self.broker.end_transaction, self.place.name, self.epoch))

    @override
    async def fetch_committed(self) -> Mapping[TopicPartition, Committed]:
        committed: Mapping[TopicPartition, Committed] = await self.request(
            Step.COMMITTED, partial(self.broker.offsets_of, self.place.sources)
        )
        return committed

    @override
    def open_pending(self) -> MemoryPendingTable:
        return MemoryPendingTable(self.disk, self.place.name)

    @override
    def open_dead(self, dlq: TopicPartition) -> MemoryDeadLetterTable:
        return MemoryDeadLetterTable()

    @override
    def open_seen(self) -> MemorySeenTable:
        return MemorySeenTable(self.disk, f"{self.place.name}.seen")


class Pause(asyncio.Event):
    """A call of a step that waits until this is set, or fails with `error`; if `durable`, it takes effect at once."""

    def __init__(self, *, durable: bool = False, error: BaseException | None = None) -> None:
        super().__init__()
        self.durable, self.error = durable, error
        self.reached = False
        self.arrive: Callable[[], None] = lambda: None
        """Lets the request arrive."""

    def set(self) -> None:
        """Let the call go on. Its request takes effect now, even if the caller is dead."""
        if not self.is_set():
            self.arrive()
        super().set()


class MemoryLaneTransport(MemoryLane):
    """Kafka and the local disk, which outlive workers, and the lane of the running worker.

    `fail` and `pause` inject faults; `calls` and `batches` record steps and commits.
    """

    clock: VirtualClock
    pending: MemoryPendingTable | None

    def __init__(self, clock: VirtualClock | None = None) -> None:
        clock = clock or VirtualClock()
        broker, none = MemoryBroker(clock.wall_ms), TopicPartition("", 0)
        place = LaneSite(name="", group="", partition=0, sources=(), main=none, changelog=none, dlqs=())
        reader = MemoryReader(broker, self.request)
        super().__init__(
            place=place, reader=reader, clock=clock, generation=1, member_id="", broker=broker, disk=Disk()
        )
        self.calls: list[Step] = []
        """Every step, failed ones included."""
        self.batches: list[LaneBatch] = []
        self.released: dict[TopicPartition, int] | None = None
        """Positions from which records flow; None while they are held."""
        self._batch = LaneBatch()
        self._faults: defaultdict[str, deque[Pause | None]] = defaultdict(deque)
        self._attached: bool | None = None

    # -- faults ---------------------------------------------------------------------------------------------------

    def fail(self, step: Step, error: BaseException, *, after: int = 0, times: int = 1, durable: bool = False) -> None:
        """Make `times` calls of a step fail, `after` others; a `durable` one takes effect, only its answer is lost.

        Raises:
            ValueError: there is no such step.
        """
        self._faults[Step(step)].extend([None] * after + [Pause(durable=durable, error=error)] * times)

    def pause(self, step: Step, *, after: int = 0, durable: bool = False) -> Pause:
        """Make a call of a step wait until the returned event is set: the moment to inspect, or to end the worker.

        A waiting `COMMIT` takes effect when it is set, even if its worker is dead by then, unless the lane's next owner
        has fenced it. To have it never arrive, never set it.

        Args:
            step: any but `APPLY`, which is not asynchronous.
            after: number of calls that succeed before.
            durable: it takes effect at once, only its answer waits.
        """
        if step is Step.APPLY:
            raise ValueError("apply is not asynchronous; pause a commit with durable=True: it waits just before")
        pause = Pause(durable=durable)
        self._faults[Step(step)].extend([*[None] * after, pause])
        return pause

    def lose_store(self) -> None:
        """Delete the local store, as for a worker on another machine."""
        self.disk = Disk()

    def append(self, tp: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Append a record, as a producer of the user would."""
        self.broker.append(tp, Outgoing(*tp, key, value, headers))

    def read(self, tp: TopicPartition, start: int = 0) -> list[Record]:
        return self.broker.read(tp, start)[0]

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        return self.broker.committed

    # -- workers ----------------------------------------------------------------------------------------------------

    def attach(self, place: LaneSite, life: str) -> None:
        """Become the lane of another worker, whose unique id is `life`."""
        if self._attached:
            raise RuntimeError("this transport belongs to a partition that still runs: leave that one first")
        self._attached = True
        self.place, self.life, self._notes = place, life, None
        for tp in place.sources:
            self.offsets.setdefault(tp, 0)

    def detach(self) -> None:
        """End the worker: its further steps have no effect."""
        self._attached = False
        self.released = None

    # -- steps ------------------------------------------------------------------------------------------------------

    @override
    def request(self, name: str, effect: Callable[[], Any]) -> asyncio.Future[Any]:
        answer, fault = asyncio.get_running_loop().create_future(), self._fault(name)
        if fault is not None and fault.durable:
            effect = partial(lambda result: result, effect())
        if fault is not None and fault.error is not None:
            answer.set_exception(fault.error)
        elif fault is not None and not fault.is_set():
            fault.arrive = partial(_answer, answer, effect)
        else:
            _answer(answer, effect)
        return answer

    def _fault(self, name: str) -> Pause | None:
        if self._attached is False:
            raise ConnectionError(f"{name}: the worker is dead")
        if isinstance(name, Step):
            self.calls.append(name)
        fault = self._faults[name].popleft() if self._faults[name] else None
        if fault is not None:
            fault.reached = True
        return fault

    @override
    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        self._batch = batch
        return await super().commit(batch)

    @override
    async def end_transaction(self) -> None:
        broker, name, epoch, batch = self.broker, self.place.name, self.epoch, self._batch

        def commit() -> None:
            broker.end_transaction(name, epoch)
            self.batches.append(batch)

        await self.request(Step.COMMIT, commit)

    @override
    async def recover(self) -> None:
        await self.request(Step.RECOVER, lambda: None)
        await super().recover()

    @override
    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        await self.request(Step.RELEASE, lambda: None)
        self.released = dict(starts)

    @override
    async def hold(self) -> None:
        await self.request(Step.HOLD, lambda: None)
        self.released = None

    @override
    def apply(self, batch: LaneBatch, receipt: LaneReceipt) -> None:
        fault = self._fault(Step.APPLY)
        if fault is not None and fault.error is not None:
            self._doubted = True
            raise fault.error
        super().apply(batch, receipt)

    @override
    async def close(self) -> None:
        try:
            if self._attached is not False:
                await self.request(Step.CLOSE, lambda: None)
        finally:
            self.released = None
            await super().close()


def check_sendable(values: Iterable[object], key: object, headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the headers of records that a producer could send; raise `TypeError` for what no topic can hold."""
    if isinstance(headers, Mapping):
        raise TypeError("headers: expected pairs of a name and bytes, as [('event-id', b'7')], got a mapping")
    pairs = tuple((name, value) for name, value in headers)  # once: it may be an iterator
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"header {name!r}: expected its name as text")
    listed = [*values]
    if not listed and (key is not None or pairs):
        raise TypeError("values: expected at least one with a key or headers; a null value is None")
    parts = [*((f"value {at}", value) for at, value in enumerate(listed, 1)), ("key", key)]
    for part, given in [*parts, *((f"header {name}", value) for name, value in pairs)]:
        if given is not None and not isinstance(given, bytes):
            raise TypeError(f"{part}: expected bytes or None, as on a topic, got {given!r}{_as_bytes(given)}")
    return pairs


def _as_bytes(given: object) -> str:
    if isinstance(given, dict | list):
        return ": write json.dumps(...).encode()"
    if isinstance(given, BaseModel):
        return ": write .model_dump_json().encode()"
    return ": write .encode()" if isinstance(given, str) else ""


def _answer(answer: asyncio.Future[Any], effect: Callable[[], Any]) -> None:
    try:
        result = effect()
    except Exception as exc:  # noqa: BLE001 - the broker's answer
        if not answer.done():
            answer.set_exception(exc)
            answer.exception()  # looked at
    else:
        if not answer.done():
            answer.set_result(result)

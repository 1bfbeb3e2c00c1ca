"""A lane's primitives on the simulated broker; the order of the steps is the engine's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from retryapp.core.hops import Outgoing
from retryapp.engine.transport import LaneProtocol
from retryapp.ports import Committed, Sink, Standing, TopicPartition
from simulation.disk import SimDeadLetterStore, SimPendingStore, SimSeenStore
from simulation.host import Host
from simulation.network import Wire

_SLICE = 20
"""Records that one request of a reading brings."""


class SimAcks:
    """`ports.Acks` of one request."""

    def __init__(self, answer: asyncio.Future[tuple[list[int], int]] | None) -> None:
        self._answer = answer

    def on_appended(self, tell: Callable[[int], None]) -> bool:
        """See `ports.Acks.on_appended`."""
        if self._answer is None:
            return False

        def acknowledged(done: asyncio.Future[tuple[list[int], int]]) -> None:
            if not done.cancelled() and done.exception() is None:
                tell(done.result()[1])

        self._answer.add_done_callback(acknowledged)
        return True

    async def offsets(self) -> list[int]:
        """See `ports.Acks.offsets`."""
        return [] if self._answer is None else (await self._answer)[0]


@dataclass(slots=True, kw_only=True)
class SimLane(LaneProtocol):
    """`engine.transport.LaneProtocol` on the simulated broker."""

    worker: Host
    epoch: int = -1
    fenced_ms: float = 0.0
    """When its producer was there: what it reads comes after."""
    line: Wire | None = None
    """The producer's own connection: what it has sent may arrive behind what the consumer sends later."""

    async def standing(self) -> Standing:
        """See `LaneProtocol.standing`."""
        broker, asked_s = self.worker.broker, self.clock.monotonic_s()
        got: Standing = await self.worker.wire.request(
            "prove", lambda: broker.heartbeat(self.member_id, self.generation)
        )
        if got is not Standing.GONE:
            self.worker.client.heard(asked_s)
        return got

    async def start_producer(self) -> None:
        """See `LaneProtocol.start_producer`."""
        self.line = Wire(self.worker.wire.network)
        broker = self.worker.broker
        self.epoch = await self.line.request("fence", lambda: broker.init_producer(self.place.name))
        self.fenced_ms = asyncio.get_running_loop().time() * 1000

    def end_producer(self) -> asyncio.Task[None] | None:
        """See `LaneProtocol.end_producer`."""
        self.epoch = -1
        return None

    async def begin(self) -> None:
        """See `LaneProtocol.begin`."""

    def _line(self) -> Wire:
        if self.line is None or self.epoch < 0:
            raise RuntimeError(f"lane {self.place.name} has no producer")
        return self.line

    async def send(self, records: Sequence[Outgoing]) -> SimAcks:
        """See `LaneProtocol.send`."""
        if not records:
            return SimAcks(None)
        line = self._line()
        broker, name, epoch, sent = self.worker.broker, self.place.name, self.epoch, list(records)

        def append() -> tuple[list[int], int]:
            return broker.produce(name, epoch, sent), broker.now_ms()

        return SimAcks(line.request("produce", append))

    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """See `LaneProtocol.send_offsets`."""
        broker, told, epoch = self.worker.broker, dict(offsets), self.epoch
        await self._line().request("offsets", lambda: broker.add_offsets(self.place.name, epoch, told))

    async def end_transaction(self) -> None:
        """See `LaneProtocol.end_transaction`."""
        broker, epoch = self.worker.broker, self.epoch
        await self._line().request("commit", lambda: broker.end_transaction(self.place.name, epoch))

    async def fetch_committed(self) -> Mapping[TopicPartition, Committed]:
        """See `LaneProtocol.fetch_committed`."""
        broker, sources = self.worker.broker, list(self.place.sources)
        got: Mapping[TopicPartition, Committed] = await self.worker.wire.request(
            "committed", lambda: broker.offsets_of(sources)
        )
        return got

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `LaneProtocol.reposition`."""
        await self.worker.client.reposition(starts)

    async def hold(self) -> None:
        """See `ports.LaneTransport.hold`."""
        await self.worker.client.hold(self.place.sources)

    def open_stores(self) -> tuple[SimPendingStore, SimDeadLetterStore]:
        """See `LaneProtocol.open_stores`."""
        return SimPendingStore(self.worker.disk, self.place.name), SimDeadLetterStore()

    def open_seen(self) -> SimSeenStore:
        """See `LaneProtocol.open_seen`."""
        return SimSeenStore(self.worker.disk, f"{self.place.name}.seen")


class SimReader:
    """`ports.TopicReader` on the simulated broker."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """See `ports.TopicReader.bounds`."""
        broker, asked = self._worker.broker, list(tps)
        got: dict[TopicPartition, tuple[int, int]] = await self._worker.wire.request(
            "bounds", lambda: broker.bounds(asked)
        )
        return got

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """See `ports.TopicReader.read`."""
        broker = self._worker.broker
        first, end = (await self.bounds([tp]))[tp]
        position = max(start, first)
        while position < end:
            records, position = await self._worker.wire.request("tail", partial(broker.read, tp, position, _SLICE))
            if sink(records, position):
                break
        return end

"""A lane whose broker is a network away; its primitives are those of the test kit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from retryapp.ports import Row, Sink, Standing, TopicPartition
from retryapp.testing import Step
from retryapp.testing.lane import MemoryLane, MemoryReader
from retryapp.testing.tables import MemoryPendingTable
from simulation.disk import SimDisk
from simulation.network import Wire

if TYPE_CHECKING:
    from simulation.worker import SimWorker

LETTERS_S = 3.0
"""How long it takes, where that takes long, until all dead letters are known."""


@dataclass(frozen=True, slots=True)
class LateReader(MemoryReader):
    """Takes its time for dead letters, which nothing but their table waits for."""

    @override
    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        if background:
            await asyncio.sleep(LETTERS_S)
        return await MemoryReader.read(self, tp, start, sink)


class SimPendingTable(MemoryPendingTable):
    """A table that knows its age."""

    def __init__(self, disk: SimDisk, name: str, now_ms: int, began: Callable[[int], None]) -> None:
        super().__init__(disk, name)
        self._began = began
        self._now_ms = now_ms
        if disk.used_ms(name) is None:
            self.touch(now_ms)

    @override
    def write(self, rows: Sequence[Row], changelog_offset: int | None) -> None:
        super().write(rows, changelog_offset)
        self.touch(self._now_ms)

    @override
    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        if not self.next_offset and records == ():
            self._began(next_offset)
        super().recover(records, next_offset)

    @override
    def recovered(self) -> None:
        super().recovered()
        self.touch(self._now_ms)

    @override
    def touch(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if isinstance(self._disk, SimDisk):
            self._disk.use(self._name, now_ms)


@dataclass(slots=True, kw_only=True)
class SimLane(MemoryLane):
    """`engine.lane.transport.LaneProtocol` of a simulated worker."""

    worker: SimWorker
    fenced_ms: float = 0.0
    """When the producer was there with which it opened: what it reads comes after."""
    renews: bool = False
    """It takes another one within its session, for which it reads nothing."""
    line: Wire | None = None
    """The producer's own connection: what it has sent may arrive after what the consumer sends later."""
    letters_s: float = 0.0
    """Before this time not all dead letters are known."""

    @override
    def request(self, name: str, effect: Callable[[], Any]) -> asyncio.Future[Any]:
        line = None if name in {Step.PROVE, Step.COMMITTED} else self.line
        return (line or self.worker.wire).request(name, effect)

    @override
    async def main_id(self) -> str:
        broker = self.worker.broker
        found: str = await self.request("main id", lambda: broker.id_of(self.place.main.topic))
        return found

    @override
    async def standing(self) -> Standing:
        asked_s = self.clock.monotonic_s()
        standing = await MemoryLane.standing(self)
        if standing is not Standing.GONE:
            self.worker.consumer.heard(asked_s)
        return standing

    @override
    async def start_producer(self) -> None:
        self.line = Wire(self.worker.wire.network)
        await MemoryLane.start_producer(self)
        if not self.renews:
            self.fenced_ms = asyncio.get_running_loop().time() * 1000

    @override
    async def renew(self) -> None:
        self.renews = True
        try:
            await MemoryLane.renew(self)
        finally:
            self.renews = False

    @override
    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        self.letters_s = self.clock.monotonic_s() + (LETTERS_S if self.worker.slow_letters else 0.0)
        await self.worker.consumer.reposition(starts)

    @property
    @override
    def letters_here(self) -> bool:
        return self.clock.monotonic_s() >= self.letters_s and MemoryLane.letters_here.fget(self)  # type: ignore[attr-defined]

    @override
    async def letters_known(self) -> None:
        await MemoryLane.letters_known(self)
        await asyncio.sleep(max(0.0, self.letters_s - self.clock.monotonic_s()))

    @override
    def open_pending(self) -> MemoryPendingTable:
        name, now_ms = f"{self.place.name} of {self.place.changelog_id}", self.clock.wall_ms()
        used_ms, forgets_s = self.worker.disk.used_ms(name), self.worker.broker.forgets_s
        if used_ms is not None and forgets_s is not None and now_ms - used_ms > forgets_s * 1_000 / 2:
            self.worker.wire.network.reached["a store was too old"] += 1
            self.disk.drop(name)
        return SimPendingTable(self.worker.disk, name, now_ms, self._began)

    def _began(self, offset: int) -> None:
        """Note where a store begins that has nothing; one that finds nothing to read begins at the end."""
        changelog = self.place.changelog
        if offset < self.broker.bounds([changelog])[changelog][1]:
            self.worker.wire.network.reached["a rebuild began at a floor"] += 1

    @override
    async def hold(self) -> None:
        await self.worker.consumer.hold(self.place.sources)

"""Kafka as one lane sees it, in memory: transactions that take effect whole or not at all, and can be made to fail.

Like the broker, it puts a marker behind every transaction, so offsets have gaps; like that of the real transport, its
table is a copy of a changelog; it is made anew from it at each opening.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from retryapp.core.record import Record
from retryapp.ports import LaneBatch, LaneReceipt, Removal, Row, TopicPartition
from retryapp.testing.clock import VirtualClock
from retryapp.testing.tables import MemoryPendingTable


class Step(StrEnum):
    """What a lane asks of its transport."""

    PROVE = "prove"
    FENCE = "fence"
    COMMITTED = "committed"
    RECOVER = "recover"
    RELEASE = "release"
    COMMIT = "commit"
    APPLY = "apply"
    HOLD = "hold"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class _Fault:
    error: BaseException | None
    durable: bool
    gate: asyncio.Event | None


@dataclass(slots=True)
class _Topic:
    records: list[Record] = field(default_factory=list)
    end: int = 0


class MemoryLaneTransport:
    """`ports.LaneTransport` in memory. `fail` and `pause` say what goes wrong, `calls` and `batches` what was done."""

    def __init__(self, sources: Sequence[TopicPartition], clock: VirtualClock | None = None) -> None:
        """Take the partitions whose offsets the lane moves.

        Args:
            sources: they begin at offset 0.
            clock: stamps what is published.
        """
        self.calls: list[Step] = []
        """Every step that was asked for, in order, failed ones included."""
        self.batches: list[LaneBatch] = []
        """What was committed."""
        self.offsets: dict[TopicPartition, int] = dict.fromkeys(sources, 0)
        """Committed offsets."""
        self.changelog: list[Row | Removal] = []
        self.pending: MemoryPendingTable | None = None
        """The table while the lane is open."""
        self.released: dict[TopicPartition, int] | None = None
        """Where records flow from; None while they are held."""
        self._clock = clock or VirtualClock()
        self._topics: defaultdict[TopicPartition, _Topic] = defaultdict(_Topic)
        self._faults: defaultdict[Step, deque[_Fault | None]] = defaultdict(deque)

    # -- what a test says -----------------------------------------------------------------------------------------

    def fail(self, step: Step, error: BaseException, *, after: int = 0, times: int = 1, durable: bool = False) -> None:
        """Make a step fail.

        Args:
            step: which.
            error: what it raises.
            after: so many calls of the step go well before.
            times: so many calls fail.
            durable: `COMMIT` only: the transaction took effect, its acknowledgement was lost.
        """
        self._faults[step].extend([None] * after + [_Fault(error, durable, None)] * times)

    def pause(self, step: Step) -> asyncio.Event:
        """Make the next call of a step wait until the returned event is set."""
        gate = asyncio.Event()
        self._faults[step].append(_Fault(None, False, gate))
        return gate

    def append(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> Record:
        """Put a record at the end of a partition, as a producer of the user would; return it."""
        topic = self._topics[tp]
        record = Record(tp.topic, tp.partition, topic.end, self._clock.wall_ms(), key, value, headers)
        topic.records.append(record)
        topic.end += 1
        return record

    def read(self, tp: TopicPartition, start: int = 0) -> list[Record]:
        """Return the committed records of a partition from an offset on."""
        records = self._topics[tp].records
        return records[bisect_left(records, start, key=lambda record: record.offset) :]

    # -- what the lane asks -----------------------------------------------------------------------------------------

    async def prove(self) -> None:
        """See `ports.LaneTransport.prove`."""
        await self._step(Step.PROVE)

    async def fence(self) -> None:
        """See `ports.LaneTransport.fence`."""
        await self._step(Step.FENCE)

    async def committed(self) -> Mapping[TopicPartition, int]:
        """See `ports.LaneTransport.committed`."""
        await self._step(Step.COMMITTED)
        return dict(self.offsets)

    async def recover(self) -> None:
        """See `ports.LaneTransport.recover`."""
        await self._step(Step.RECOVER)
        self.pending = MemoryPendingTable()
        for at, entry in enumerate(self.changelog):
            put, removed = ([entry], []) if isinstance(entry, Row) else ([], [entry])
            self.pending.write(put, removed, at)

    async def release(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `ports.LaneTransport.release`."""
        await self._step(Step.RELEASE)
        self.released = dict(starts)

    async def hold(self) -> None:
        """See `ports.LaneTransport.hold`."""
        await self._step(Step.HOLD)
        self.released = None

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """See `ports.LaneTransport.commit`."""
        durable: BaseException | None = None
        fault = self._begin(Step.COMMIT)
        if fault is not None and fault.gate is not None:
            await fault.gate.wait()
        elif fault is not None and fault.error is not None:
            if not fault.durable:
                raise fault.error
            durable = fault.error
        receipt = self._take_effect(batch)
        if durable is not None:
            raise durable
        return receipt

    def apply(self, batch: LaneBatch, receipt: LaneReceipt) -> None:
        """See `ports.LaneTransport.apply`."""
        fault = self._begin(Step.APPLY)
        if fault is not None and fault.error is not None:
            raise fault.error
        if self.pending is None:
            raise RuntimeError("the lane applies a batch to a table that it gave up")
        self.pending.write(batch.puts, batch.removes, receipt.changelog_offset)

    async def close(self) -> None:
        """See `ports.LaneTransport.close`."""
        self.calls.append(Step.CLOSE)
        self.pending = self.released = None

    def _begin(self, step: Step) -> _Fault | None:
        self.calls.append(step)
        faults = self._faults[step]
        return faults.popleft() if faults else None

    async def _step(self, step: Step) -> None:
        fault = self._begin(step)
        if fault is not None and fault.gate is not None:
            await fault.gate.wait()
        if fault is not None and fault.error is not None:
            raise fault.error

    def _take_effect(self, batch: LaneBatch) -> LaneReceipt:
        self.batches.append(batch)
        self.offsets.update(batch.offsets)
        published = [
            self.append(TopicPartition(out.topic, out.partition), out.key, out.value, out.headers).offset
            for out in batch.publishes
        ]
        for tp in {TopicPartition(out.topic, out.partition) for out in batch.publishes}:
            self._topics[tp].end += 1  # the transaction's marker
        self.changelog += [*batch.puts, *batch.removes]
        written = bool(batch.puts or batch.removes)
        return LaneReceipt(published, len(self.changelog) - 1 if written else None)

"""Kafka as one lane sees it without transactions, in memory: every step on its own, and a crash may come in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retryapp.engine.copies import read_outcomes
from retryapp.ports import LaneBatch, LaneReceipt, Removal, Row, Sink, TopicPartition
from retryapp.testing.lane import MemoryLaneTransport, Step


@dataclass(frozen=True, slots=True)
class _Reader:
    """`ports.TopicReader` on memory topics."""

    topics: MemoryLaneTransport

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """See `ports.TopicReader.bounds`."""
        return {tp: self.topics.bounds(tp) for tp in tps}

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """See `ports.TopicReader.read`: one slice has everything."""
        _, end = self.topics.bounds(tp)
        sink(self.topics.read(tp, start), end)
        return end


class MemoryPlainTransport(MemoryLaneTransport):
    """`MemoryLaneTransport` for `delivery="at_least_once"`: records, changelog, offsets, one after the other.

    A worker that dies in between leaves what it has done so far; there is no fence. What a paused commit still has to
    do is not done when the worker dies.
    """

    async def recover(self) -> None:
        """See `ports.LaneTransport.recover`."""
        await super().recover()
        if self.site is not None:
            self.outcomes = await read_outcomes(self.site, _Reader(self), set_by_hand=False)

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """See `ports.LaneTransport.commit`."""
        fault = self._begin(Step.COMMIT)
        if fault is not None and not fault.durable:
            await self._carry_out(fault)
        published: list[int] = []
        for out in batch.publishes:
            await self._step(Step.PUBLISH)
            published.append(self._publish(out))
        changes: list[Row | Removal] = [*batch.puts, *batch.removes]
        for change in changes:
            await self._step(Step.LOG)
            self.changelog.append(change)
        if batch.offsets:
            await self._step(Step.MOVE)
            self._move(batch)
        self.batches.append(batch)
        if fault is not None and fault.durable:
            await self._carry_out(fault)
        return self._receipt(batch, published)

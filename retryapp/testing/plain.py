"""Kafka as one lane sees it without transactions, in memory: every step on its own, and a crash may come in between."""

from __future__ import annotations

from retryapp.ports import LaneBatch, LaneReceipt, Removal, Row
from retryapp.testing.lane import MemoryLaneTransport, Step


class MemoryPlainTransport(MemoryLaneTransport):
    """`MemoryLaneTransport` for `delivery="at_least_once"`: records, changelog, offsets, one after the other.

    A worker that dies in between leaves what it has done so far; there is no fence. What a paused commit still has to
    do is not done when the worker dies.
    """

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
            self.offsets.update(batch.offsets)
        self.batches.append(batch)
        if fault is not None and fault.durable:
            await self._carry_out(fault)
        return self._receipt(batch, published)

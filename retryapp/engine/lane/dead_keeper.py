"""Fill the dead-letter table after its lane has opened: it only answers queries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from retryapp.core.errors import DiskFullError, StoreBrokenError
from retryapp.ports import Clock, DeadLetterTable, DeadRow, LaneBatch, LaneReceipt, TopicPartition, TopicReader

logger = logging.getLogger(__name__)

_FORGET_S = 3600.0
"""How often the table forgets what retention has deleted from its topic."""
_REFILL_S = 5.0


class DeadLetterKeeper:
    """Fills a dead-letter table from its topic and forgets what retention deletes, as long as the lane is open.

    Letters that the lane publishes meanwhile are written at once, but move `next_offset` only once the table is filled:
    before, it would pass letters that are not read yet.
    """

    def __init__(
        self, lane: str, table: DeadLetterTable, *, dlq: TopicPartition, reader: TopicReader, clock: Clock
    ) -> None:
        self.filled = False
        self.fault: DiskFullError | StoreBrokenError | None = None
        self.task = asyncio.create_task(self._keep(), name=f"dead-{lane}")
        self._lane = lane
        self._table = table
        self._dlq = dlq
        self._reader = reader
        self._clock = clock

    def write(self, dead: Sequence[DeadRow]) -> None:
        """Write letters that the lane has published, in the order of their offsets."""
        self._table.write(dead, dead[-1].offset + 1 if self.filled else None)

    async def _keep(self) -> None:
        while True:
            wait_s = _FORGET_S
            try:
                first, _ = (await self._reader.bounds([self._dlq]))[self._dlq]
                await self._forget_before(first)
                if not self.filled:
                    await self._reader.read(self._dlq, self._table.next_offset, self._take, background=True)
                    self.filled = True
            except (DiskFullError, StoreBrokenError) as exc:
                self.fault = exc
                return
            except Exception as exc:  # noqa: BLE001 - the broker may be away; this table only answers questions
                logger.info("Dead letters of lane %s could not be read: %r", self._lane, exc)
                wait_s = _REFILL_S
            await self._clock.sleep(wait_s)

    def _take(self, records: list[Any], position: int) -> None:
        self._table.write([DeadRow(r.offset, tuple(r.headers)) for r in records], position)

    async def _forget_before(self, first_offset: int) -> None:
        gone = True
        while gone:
            gone = self._table.forget_before(first_offset) > 0
            await asyncio.sleep(0)


def dead_rows(dlq: TopicPartition, batch: LaneBatch, receipt: LaneReceipt) -> list[DeadRow]:
    """Return the dead letters of a committed batch."""
    return [
        DeadRow(offset, outgoing.headers)
        for outgoing, offset in zip(batch.publishes, receipt.published_offsets, strict=True)
        if outgoing.topic == dlq.topic
    ]

"""Keep the dead-letter table of an open lane. It only answers queries, so no fault of it reaches the lane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
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
    before, it would pass letters that are not read yet. A table that fails is dropped and filled again.
    """

    def __init__(
        self,
        lane: str,
        open_table: Callable[[], DeadLetterTable],
        *,
        dlq: TopicPartition,
        reader: TopicReader,
        clock: Clock,
    ) -> None:
        self.filled = False
        self.table: DeadLetterTable | None = None
        """None: not open yet, or failed."""
        self._lane = lane
        self._open_table = open_table
        self._dlq = dlq
        self._reader = reader
        self._clock = clock
        self._faulty = False
        self.task = self._start()

    def write(self, dead: Sequence[DeadRow]) -> None:
        """Write letters that the lane has published, in the order of their offsets."""
        if self.table is None:
            return  # they are read when it is filled
        try:
            self.table.write(dead, dead[-1].offset + 1 if self.filled else None)
        except Exception as exc:  # noqa: BLE001 - whatever it is: the lane must go on
            self._drop(exc)
            self.task.cancel()
            self.task = self._start(_REFILL_S)

    def _start(self, wait_s: float = 0.0) -> asyncio.Task[None]:
        return asyncio.create_task(self._keep(wait_s), name=f"dead-{self._lane}")

    def _drop(self, fault: Exception) -> None:
        level = logging.DEBUG if self._faulty else logging.WARNING  # once until it is filled again
        logger.log(level, "The dead-letter table of lane %s failed and will be rebuilt: %s", self._lane, fault)
        table, self.table, self.filled, self._faulty = self.table, None, False, True
        if table is not None:
            table.drop()

    async def _keep(self, wait_s: float) -> None:
        while True:
            await self._clock.sleep(wait_s)
            try:
                if self.table is None:
                    self.table = self._open_table()
                await self._refresh(self.table)
            except Exception as exc:  # noqa: BLE001 - the broker may be away, or the disk full
                if self.table is None or isinstance(exc, (DiskFullError, StoreBrokenError)):
                    self._drop(exc)
                else:
                    logger.info("Dead letters of lane %s could not be read: %r", self._lane, exc)
            wait_s = _FORGET_S if self.filled else _REFILL_S

    async def _refresh(self, table: DeadLetterTable) -> None:
        first, _ = (await self._reader.bounds([self._dlq]))[self._dlq]
        gone = True
        while gone:
            gone = table.forget_before(first) > 0
            await asyncio.sleep(0)
        if not self.filled:

            def take(records: list[Any], position: int) -> None:
                table.write([DeadRow(r.offset, tuple(r.headers), r.key, r.timestamp) for r in records], position)

            await self._reader.read(self._dlq, table.next_offset, take, background=True)
            self.filled, self._faulty = True, False


def dead_rows(
    topics: Collection[str], batch: LaneBatch, receipt: LaneReceipt, *, now_ms: int
) -> dict[str, list[DeadRow]]:
    """Return the dead letters of a batch that was committed just now, by topic."""
    found: dict[str, list[DeadRow]] = {}
    for outgoing, offset in zip(batch.publishes, receipt.published_offsets, strict=True):
        if outgoing.topic in topics:
            found.setdefault(outgoing.topic, []).append(DeadRow(offset, outgoing.headers, outgoing.key, now_ms))
    return found

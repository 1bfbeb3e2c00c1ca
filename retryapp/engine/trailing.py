"""Offsets that follow their batch: without transactions, under load, those of several batches move in one request.

Each commit of offsets is a request that the turns behind it would wait for, and nobody waits for the offset itself.
What a crash comes before is read again: hand-offs are dropped as copies where their outcome is durable
(`engine.copies`), so no more of them trail than an opening lane looks at, one full batch; and what was well at once
runs again, so nothing trails for longer than an offset that comes by itself waits at least.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from retryapp.engine.limits import LaneLimits
from retryapp.ports import Committed, LaneBatch, TopicPartition

logger = logging.getLogger(__name__)

TRAIL_S: Final = 0.25
"""Longest time between two commits of offsets under load. Measured at 1,000 retries a second on one processor with 8
lanes: lateness p99 60 ms with 0 (each batch with its offsets), 59 ms with 0.1 and 47 ms with 0.25."""
_CATCH_UP_S: Final = 2.0
"""Longest wait for the offsets that trail behind a session that ends early; below `transport.CLOSE_S`."""


@dataclass(slots=True)
class Trailing:
    """What one session of a lane has to commit yet."""

    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    limits: LaneLimits = field(default_factory=LaneLimits)
    _records: int = 0
    _size: int = 0
    _moved_s: float = -math.inf

    def full(self, batch: LaneBatch) -> bool:
        """Tell whether a batch would be too much on top: what trails has to be committed before that goes out."""
        return bool(self.offsets) and (
            self._records + batch.changes > self.limits.changes or self._size + batch.size > self.limits.size
        )

    def recent(self, now_s: float) -> bool:
        """Tell whether offsets were committed a moment ago."""
        return now_s - self._moved_s < TRAIL_S

    def add(self, batch: LaneBatch, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Take in what has gone out: the batch, and the offsets that it settles."""
        self.offsets |= offsets
        if self.offsets:
            self._records += batch.changes
            self._size += batch.size

    def moved(self, now_s: float) -> None:
        """Note that everything is committed."""
        self.drop()
        self._moved_s = now_s

    async def catch_up(
        self, commit: Callable[[Mapping[TopicPartition, Committed]], Awaitable[None]], lane: str
    ) -> None:
        """Try to commit what trails behind a session that ends early: it is done, and would be done once more."""
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await commit(self.offsets)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the records are read again
            logger.info("Lane %s ends without its last offsets: %r", lane, exc)
        self.drop()

    def drop(self) -> None:
        """Forget it: the session is over, and its records are read again."""
        self.offsets, self._records, self._size, self._moved_s = {}, 0, 0, -math.inf

"""The commands of a partition that are read and not obeyed yet: bounded in number and bytes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from retryapp.core.lane_errors import PositionGoneError
from retryapp.engine.lane.transport import LaneProtocol

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 5_000
"""Commands in memory; the others wait on their topic."""
MOST_WAITING_BYTES: Final = 4 << 20
"""The same in bytes: an edited value is in its command."""


class ControlQueue:
    """Reads the control topic on from where the lane has obeyed all before."""

    def __init__(self, transport: LaneProtocol) -> None:
        self._transport = transport
        self._next_offset, self._end = transport.control_next, transport.control_end
        """Where the next reading begins, and where the topic ends."""
        self._records: deque[Any] = deque()
        self.wake = asyncio.Event()
        """Set when there may be something to do."""
        self.caught_up = asyncio.Event()
        """Set once the commands are obeyed that were there when the lane opened."""

    def come(self, end: int) -> None:
        """Note that the control topic ends there."""
        if end != self._end:
            self._end = end
            self.wake.set()

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def unread(self) -> bool:
        """Whether the topic has more."""
        return self._end != self._next_offset

    def take(self, limit: int) -> list[Any]:
        """Take the oldest records."""
        return [self._records.popleft() for _ in range(min(limit, len(self._records)))]

    async def read(self) -> None:
        """Read records, as many as there is room for."""
        control = self._transport.place.control
        if control is None:
            return
        try:
            end = await self._transport.reader.read(control, self._next_offset, self._receive)
        except Exception as fault:
            if not self.caught_up.is_set():
                raise  # rows wait for what came before
            logger.warning("Commands on %s[%d] could not be read: %r", *control, fault)
            self._end = self._next_offset  # until `come` says more
            return
        if end < self._next_offset:
            raise PositionGoneError(*control, self._next_offset)
        if not self._full:
            self._next_offset = self._end = end

    def _receive(self, records: Sequence[Any], next_offset: int) -> bool:
        self._records.extend(records)
        self._next_offset = next_offset
        return self._full

    @property
    def _full(self) -> bool:
        held = sum(len(record.value or b"") for record in self._records)
        return len(self._records) >= MOST_WAITING or held >= MOST_WAITING_BYTES

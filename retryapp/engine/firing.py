"""The firing task of one session: sleeps until the next row is due, and queues what is due as far as there is room.

What is claimed, and what lies ahead of the handler, belongs to a session: whoever opens next begins with none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retryapp.engine.fire import Ahead, fire
from retryapp.engine.lane import Lane
from retryapp.engine.run import Station
from retryapp.ports import PendingTable

FIRE_LIMIT = 500
"""Rows in one firing."""
FIRE_BYTES = 1 << 20
"""Bytes of rows in one firing; a larger row fires alone."""
FIRE_QUEUED_BYTES = 8 << 20
"""Bytes of rows in firings that are not committed yet; the last firing may pass it."""
FIRE_AHEAD = 2_000
"""Fired records that the handler may have before it."""
NEVER_MS = 1 << 62
MAX_SLEEP_S = 60.0
"""Longest sleep of the firing task; it wakes earlier for an earlier row."""
BLOCKED_SLEEP_S = 0.25
"""The same while there is no room for what is due."""


class Firing:
    """See the module's text."""

    def __init__(
        self, station: Station, lane: Lane, partition: int, session: int, pending: PendingTable | None
    ) -> None:
        self.claimed: set[bytes] = set()
        """Keys of rows in firings that are not settled yet."""
        self.claimed_bytes = 0
        self.ahead = Ahead()
        self.wake = asyncio.Event()
        self.over = False
        """The session is over, or drains: nothing fires any more."""
        self._station = station
        self._lane = lane
        self._partition = partition
        self._session = session
        self._pending = pending
        self._blocked = False
        self.looked_ms = station.clock.wall_ms()
        """When what is due was last looked for, epoch milliseconds; at first, when the session began."""
        self._next_due_ms = 0
        """What the task sleeps towards: an earlier row wakes it."""

    def parked(self, due_at_ms: int) -> None:
        """Take note of a row that has been committed."""
        if due_at_ms < self._next_due_ms:
            self._next_due_ms = due_at_ms
            self.wake.set()

    def delivered(self, next_offset: int) -> None:
        """Take note of redelivered records that are done, before this offset."""
        self.ahead.finished(next_offset)
        self.room()

    def room(self) -> None:
        """There may be room for what waited."""
        if self._blocked:
            self.wake.set()

    async def run(self) -> None:
        """Fire until the session is over.

        Raises:
            LaneClosedError: it is.
        """
        clock = self._station.clock
        while not self.over:
            await self._lane.ready()  # one look and one turn for all that is due by then
            if not clock.trusted:
                await asyncio.sleep(BLOCKED_SLEEP_S)
                continue
            self.wake.clear()
            self._next_due_ms = 0  # whatever is parked meanwhile is looked at by the scan, or wakes
            next_due_ms = await self._fire_due()
            self.looked_ms = clock.wall_ms()
            self._next_due_ms = NEVER_MS if next_due_ms is None else next_due_ms
            wait_s = MAX_SLEEP_S
            if next_due_ms is not None and not self._blocked:
                # not compared with "is it due": a row may become due between the scan and this line
                wait_s = min(wait_s, (next_due_ms - clock.wall_ms()) / 1000)
            elif self._blocked:
                wait_s = BLOCKED_SLEEP_S  # room wakes this task; the sleep is bounded in case it was there already
            if wait_s > 0:
                try:
                    async with asyncio.timeout(wait_s):
                        await self.wake.wait()
                except TimeoutError:
                    pass
            else:
                await asyncio.sleep(0)

    async def _fire_due(self) -> int | None:
        """Queue what is due, as far as there is room; return the next due time."""
        station, pending = self._station, self._pending
        while pending is not None and not self.over:
            limit = min(FIRE_LIMIT, FIRE_AHEAD - len(self.ahead), self._lane.room)
            if self.claimed_bytes >= FIRE_QUEUED_BYTES:
                limit = 0
            self._blocked = limit <= 0
            now_ms = station.clock.wall_ms()
            rows, next_due_ms = pending.due(now_ms, max(0, limit), self.claimed, max_bytes=FIRE_BYTES)
            if not rows:
                return next_due_ms
            turn = fire(
                station.handler,
                rows,
                partition=self._partition,
                now_ms=now_ms,
                topic_id=station.topic_id,
                max_bytes=station.max_bytes,
            )
            keys = [key for key, _ in rows]
            size = sum(len(value) for _, value in rows)
            redelivery = station.handler.topology.redelivery
            redelivered = [n for n, out in enumerate(turn.publishes) if out.topic == redelivery]
            turn.on_settled = self._on_fired(keys, size, redelivered)
            self.claimed.update(keys)
            self.claimed_bytes += size
            self.ahead.queued(len(redelivered))
            self._lane.submit(self._session, turn)
            if next_due_ms is None or next_due_ms > now_ms:
                return next_due_ms
            await asyncio.sleep(0)  # many partitions have a flood at once: others in the event loop come between
        return None

    def _on_fired(
        self, keys: list[bytes], size: int, redelivered: list[int]
    ) -> Callable[[bool, tuple[int, ...]], None]:
        def settled(committed: bool, offsets: tuple[int, ...]) -> None:
            self.claimed.difference_update(keys)
            self.claimed_bytes -= size
            self.ahead.fired(len(redelivered), [offsets[n] for n in redelivered] if committed else ())
            self.room()

        return settled

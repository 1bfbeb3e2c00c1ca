"""Fire due rows: from the pending table to the redelivery topic, in due order, never early.

A task of each session sleeps until the next row is due, and queues due rows while there is room. A row is claimed from
the queueing of its turn until that is settled, so no row is in two turns. Firing stays a bounded number of records
ahead of the handler: a flood waits in the table, where it can still be cancelled or rescheduled, not in a topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from retryapp.core.errors import (
    DamagedMetadataError,
    DamagedRowError,
    NewerFormatError,
    NewerRecordError,
    NewerRowError,
)
from retryapp.core.headers import Waiting, decode_waiting
from retryapp.core.hops import Outgoing, to_redelivery, waiting_size
from retryapp.core.record import Record
from retryapp.core.rows import PendingRow, decode_row, parse_row_key
from retryapp.engine.delivery.damage import bury_damaged, bury_too_large
from retryapp.engine.delivery.park import waiting_metadata
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Event, Observation, PendingTable, Removal

FIRE_LIMIT = 500
FIRE_BYTES = 1 << 20
"""Bytes of rows in one firing; a larger row fires alone."""
FIRE_QUEUED_BYTES = 8 << 20
"""Bytes of rows in uncommitted firings; the last firing may exceed it."""
FIRE_AHEAD = 2_000
NEVER_MS = 1 << 62
MAX_SLEEP_S = 60.0
BLOCKED_SLEEP_S = 0.25
"""Longest sleep of the firing task without room for due rows."""


def fire(context: DeliveryContext, rows: Sequence[tuple[bytes, bytes]], *, partition: int, now_ms: int) -> Turn:
    """Return the turn that fires rows `(key, value)`, all due. A row that no longer fits our topics is dead-lettered.

    Raises:
        ValueError: a row is not due yet.
        NewerRecordError: a newer retryapp wrote a row; it stays, and so does everything after it.
    """
    handler = context.handler
    changelog = handler.topology.pending_changelog
    turns, removes = list[Turn](), list[Removal]()
    for key, value in rows:
        place = parse_row_key(key)
        if place.due_at_ms > now_ms:
            raise ValueError(f"row due at {place.due_at_ms} ms would fire at {now_ms} ms")
        tier = "?"
        row = PendingRow(key, value, (), -1)  # for bytes that are no row
        try:
            row = decode_row(value)
            waiting = decode_waiting(row.headers)
            out = to_redelivery(row, topology=handler.topology, partition=partition)
            tier = waiting.tier if waiting else "?"
            if waiting_size(out) > context.max_bytes:
                record = Record(changelog, partition, place.origin_offset, -1, row.key, row.value, row.headers)
                one = bury_too_large(context, record, waiting_metadata(record))
            else:
                one = _fired(handler.main, out, waiting, due_at_ms=place.due_at_ms, now_ms=now_ms)
        except (NewerFormatError, NewerRowError) as exc:
            where = f"the row of {handler.main}[{partition}]@{place.origin_offset} in the pending table"
            raise NewerRecordError(where, exc.finding) from exc
        except (DamagedRowError, DamagedMetadataError) as exc:
            record = Record(changelog, partition, place.origin_offset, -1, row.key, row.value, row.headers)
            one = bury_damaged(context, record, exc, now_ms)
        turns.append(one)
        removes.append(Removal(key, tier))
    return Turn(
        publishes=tuple([out for turn in turns for out in turn.publishes]),
        removes=tuple(removes),
        observations=tuple([observation for turn in turns for observation in turn.observations]),
    )


def _fired(main: str, out: Outgoing, waiting: Waiting | None, *, due_at_ms: int, now_ms: int) -> Turn:
    observation = Observation(
        event=Event.FIRED,
        handler=main,
        topic=out.topic,
        partition=out.partition,
        failure_id=waiting.failure_id if waiting else None,
        attempt=waiting.attempt if waiting else None,
        tier=waiting.tier if waiting else None,
        due_at_ms=due_at_ms,
        lateness_ms=now_ms - due_at_ms,
    )
    return Turn(publishes=(out,), observations=(observation,))


class Firing:
    """The firing task of one session."""

    def __init__(
        self, context: DeliveryContext, lane: Lane, partition: int, session: int, pending: PendingTable | None
    ) -> None:
        self.claimed: set[bytes] = set()
        self.claimed_bytes = 0
        self._queued = 0
        """Records to be delivered in queued turns."""
        self._fired: deque[int] = deque()
        """Offsets on the redelivery topic of fired records that the handler has not finished."""
        self.wake = asyncio.Event()
        self.over = False
        self._context = context
        self._lane = lane
        self._partition = partition
        self._session = session
        self._pending = pending
        self._blocked = False
        self.looked_ms = context.clock.wall_ms()
        """Time of the last scan for due rows; at first, of the session's begin."""
        self._next_due_ms = 0

    @property
    def ahead(self) -> int:
        """Records that the handler has not finished, those in queued turns included."""
        return self._queued + len(self._fired)

    def parked(self, due_at_ms: int) -> None:
        """Note a committed row."""
        if due_at_ms < self._next_due_ms:
            self._next_due_ms = due_at_ms
            self.wake.set()

    def delivered(self, next_offset: int) -> None:
        """Note that the redelivered records before this offset are done."""
        while self._fired and self._fired[0] < next_offset:
            self._fired.popleft()
        self.room()

    def room(self) -> None:
        """Wake a task that waits for room."""
        if self._blocked:
            self.wake.set()

    async def run(self) -> None:
        """Fire until the session is over (`LaneClosedError`)."""
        clock = self._context.clock
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
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self.wake.wait()
            else:
                await asyncio.sleep(0)

    async def _fire_due(self) -> int | None:
        """Queue due rows while there is room; return the next due time."""
        context, pending = self._context, self._pending
        while pending is not None and not self.over:
            limit = min(FIRE_LIMIT, FIRE_AHEAD - self.ahead, self._lane.room)
            if self.claimed_bytes >= FIRE_QUEUED_BYTES:
                limit = 0
            self._blocked = limit <= 0
            now_ms = context.clock.wall_ms()
            rows, next_due_ms = pending.due(now_ms, max(0, limit), self.claimed, max_bytes=FIRE_BYTES)
            if not rows:
                return next_due_ms
            turn = fire(context, rows, partition=self._partition, now_ms=now_ms)
            keys = [key for key, _ in rows]
            size = sum(len(value) for _, value in rows)
            redelivery = context.handler.topology.redelivery
            redelivered = [n for n, out in enumerate(turn.publishes) if out.topic == redelivery]
            turn.on_settled = self._on_fired(keys, size, redelivered)
            self.claimed.update(keys)
            self.claimed_bytes += size
            self._queued += len(redelivered)
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
            self._queued -= len(redelivered)
            if committed:
                self._fired.extend(offsets[n] for n in redelivered)
            self.room()

        return settled

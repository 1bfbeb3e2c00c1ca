"""Firing: due rows leave the pending table for the redelivery topic, in due order, never early.

A task of each session sleeps until the next row is due, and queues what is due as far as there is room. A row is
claimed when its turn is queued, so no row is in two turns; the claim ends when the turn is settled, or with the
session. Firing stays a bounded number of records ahead of the handler: a flood waits in the table, where it can still
be cancelled or rescheduled, not in a topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

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
from retryapp.engine.damage import bury_damaged, bury_too_large
from retryapp.engine.lane import Lane
from retryapp.engine.park import waiting_metadata
from retryapp.engine.run import DeliveryContext
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, PendingTable, Removal

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


class Ahead:
    """How many fired records the handler has not finished yet."""

    def __init__(self) -> None:
        self._queued = 0
        self._fired: deque[int] = deque()

    def __len__(self) -> int:
        """Return the number of records in queued turns and on the redelivery topic."""
        return self._queued + len(self._fired)

    def queued(self, count: int) -> None:
        """Count records of a turn that was queued."""
        self._queued += count

    def fired(self, count: int, offsets: Sequence[int]) -> None:
        """Exchange queued records for their offsets on the redelivery topic (none when the turn was dropped)."""
        self._queued -= count
        self._fired.extend(offsets)

    def finished(self, next_offset: int) -> None:
        """Forget the records before this offset: the handler is done with them."""
        while self._fired and self._fired[0] < next_offset:
            self._fired.popleft()


def fire(context: DeliveryContext, rows: Sequence[tuple[bytes, bytes]], *, partition: int, now_ms: int) -> Turn:
    """Return the turn that fires rows `(key, value)`, all due. A row that no longer fits our topics is dead.

    Raises:
        ValueError: a row is not due yet: firing early is a broken promise, whatever caused it.
        NewerRecordError: a newer retryapp wrote a row. It stays where it is, and so does everything after it.
    """
    handler = context.handler
    changelog = handler.topology.pending_changelog
    turns, removes = list[Turn](), list[Removal]()
    for key, value in rows:
        place = parse_row_key(key)
        if place.due_at_ms > now_ms:
            raise ValueError(f"row due at {place.due_at_ms} ms would fire at {now_ms} ms")
        tier = "?"
        row = PendingRow(key, value, (), -1)  # what is buried where the bytes are no row
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
    """See the module's text."""

    def __init__(
        self, context: DeliveryContext, lane: Lane, partition: int, session: int, pending: PendingTable | None
    ) -> None:
        self.claimed: set[bytes] = set()
        """Keys of rows in firings that are not settled yet."""
        self.claimed_bytes = 0
        self.ahead = Ahead()
        self.wake = asyncio.Event()
        self.over = False
        """The session is over, or drains: nothing fires any more."""
        self._context = context
        self._lane = lane
        self._partition = partition
        self._session = session
        self._pending = pending
        self._blocked = False
        self.looked_ms = context.clock.wall_ms()
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
        """Fire until the session is over, which `LaneClosedError` says."""
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
                try:
                    async with asyncio.timeout(wait_s):
                        await self.wake.wait()
                except TimeoutError:
                    pass
            else:
                await asyncio.sleep(0)

    async def _fire_due(self) -> int | None:
        """Queue what is due, as far as there is room; return the next due time."""
        context, pending = self._context, self._pending
        while pending is not None and not self.over:
            limit = min(FIRE_LIMIT, FIRE_AHEAD - len(self.ahead), self._lane.room)
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

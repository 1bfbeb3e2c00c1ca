"""Read the records of due rows again that hold only a reference (`engine.delivery.reference`), of one session.

They are claimed like others, and so count as in flight with their sizes. What was claimed is read in offset order, a
bounded number of bytes at once: neighbours come in one request. A fault of the broker costs no attempt: the rows stay
claimed, and are read a little later. What this worker cannot read, as without a codec, ends the session by its name.

A row that waits on (a hold, a rate, a pause, an outage, workers that were away) becomes a copy, before the main topic
may lose the record; so does one that is claimed, and does not begin for as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Final

from retryapp.core.errors import RecordError, UnreadableTopicError
from retryapp.core.record import Record
from retryapp.core.row_keys import IDENTITY_AT, origin_offset
from retryapp.core.rows import CANCELLED, PendingRow, decode_row, encode_row, is_reference, tier_of
from retryapp.engine.delivery.reference import safe_until_ms, whole
from retryapp.engine.delivery.run import Claim, DeliveryContext
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.stops import BESIDE_ROW_BYTES
from retryapp.ports import PendingTable, Row, TopicPartition, TopicReader

logger = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
"""Bytes that are read at once; a larger record is read alone."""
FAULT_WAIT_S: Final = 1.0
LOOKS: Final = 20
"""How often the time that the main topic keeps records is divided, to look for rows that wait on."""
FIRST_LOOK_S: Final = 60.0
"""After an opening, where records wait as copies."""
SHORTEST_PAUSE_S: Final = 1.0
"""Between two looks: a compacted topic may keep a record for no time at all."""
_PAGE: Final = 200

Rows = list[tuple[Claim, Record]]


class Recall:
    """The reading of one session of a partition."""

    def __init__(
        self,
        context: DeliveryContext,
        reader: TopicReader,
        main: TopicPartition,
        pending: PendingTable | None,
        sequences: Sequences | None,
        *,
        deliver: Callable[[Rows], None],
        submit: Callable[[Turn], None],
    ) -> None:
        """Begin.

        Args:
            context: of the handler.
            reader: of the lane.
            main: where the records are.
            pending: the table.
            sequences: of an ordered handler.
            deliver: takes rows whose records are whole.
            submit: takes a turn of this session.
        """
        self.scheduler: Scheduler
        self._context = context
        self._reader = reader
        self._main = main
        self._pending = pending
        self._deliver = deliver
        self._submit = submit
        self._sequences = sequences
        self._queue: Rows = []
        self._wake = asyncio.Event()
        self._troubled = False
        self.unwritten: dict[bytes, Turn] = {}
        """By identity: the turns of first deliveries whose rows are not in the table yet."""
        self._written = asyncio.Event()

    def take(self, rows: Rows) -> None:
        """Take claimed rows: those with their records are delivered at once."""
        copies = [row for row in rows if row[0].reference is None]
        if len(copies) < len(rows):
            self._queue += [row for row in rows if row[0].reference is not None]
            self._wake.set()
        if copies:
            self._deliver(copies)

    async def run(self) -> None:
        """Read until the session is over."""
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            await self._read()

    async def keep(self) -> None:
        """Have copies wait in place of references that are not safe any more, until the session is over.

        Where records wait as copies some may still wait by reference, since the handler was declared otherwise. An
        opening is not the time to look for them, and where there is none there will be none.
        """
        if (kept_ms := self._context.kept_ms) is None:
            return
        by_reference, pause_s = self._context.handler.by_reference, max(kept_ms / LOOKS / 1000, SHORTEST_PAUSE_S)
        await self.scheduler.known.wait()
        if not by_reference:
            await asyncio.sleep(min(pause_s, FIRST_LOOK_S))
        while True:
            if not await self._keep() and not by_reference:
                return
            await asyncio.sleep(pause_s)

    async def _read(self) -> None:
        """Read the next few of those that are claimed."""
        self._queue.sort(key=lambda row: row[0].identity)
        size = 0

        def fits(row: tuple[Claim, Record]) -> bool:
            nonlocal size
            size += row[0].size
            return size <= READ_BYTES

        count = max(1, len([*takewhile(fits, self._queue)]))
        found = await self._find([origin_offset(claim.identity) for claim, _ in self._queue[:count]])
        rows, self._queue = self._queue[:count], self._queue[count:]  # what came meanwhile is behind them
        self._deliver([(claim, self._complete(claim, waiting, found)) for claim, waiting in rows])

    def _complete(self, claim: Claim, waiting: Record, found: Mapping[int, Record]) -> Record:
        if claim.reference is None:  # its copy was made meanwhile
            return waiting
        try:
            read = found.get(origin_offset(claim.identity))
            return whole(self._context, waiting, claim.identity, claim.reference, read)
        except RecordError as lost:
            claim.lost = lost
            return waiting

    async def _find(self, offsets: list[int]) -> Mapping[int, Record]:
        while True:
            try:
                found = await self._reader.records(self._main, offsets)
            except UnreadableTopicError:
                raise
            except Exception as exc:  # noqa: BLE001 - of whatever client: the records wait, and cost no attempt
                if not self._troubled:
                    logger.warning("%s[%s] cannot be read again now: %r", *self._main, exc)
                self._troubled = True
                for claim, _ in self._queue:  # rows of other partitions may have its place: its run asks for one
                    self._context.pace.free(claim)
                await asyncio.sleep(FAULT_WAIT_S)
            else:
                self._troubled = False
                return found

    async def read_row(self, row: PendingRow, identity: bytes) -> PendingRow:
        """Return a row as a copy.

        Raises:
            RecordError: the main topic does not have its record.
            Exception: whatever the client raises.
        """
        if row.reference is None:
            return row
        offset = origin_offset(identity)
        found = await self._reader.records(self._main, [offset])
        waiting = Record(self._main.topic, self._main.partition, offset, row.since_ms, row.key, row.value, row.headers)
        read = whole(self._context, waiting, identity, row.reference, found.get(offset))
        return replace(row, value=read.value, headers=read.headers, reference=None, revision=row.revision + 1)

    # -- rows that wait on --------------------------------------------------------------------------------------

    async def _keep(self) -> bool:
        """Look at all rows; tell whether there was a reference."""
        after, found = None, False
        while self._pending is not None and (rows := self._pending.page(after, _PAGE)):
            for key, value in rows:
                if is_reference(value):
                    found = True
                    if self._is_unsafe(value):
                        await self._copy(key, value)
            after = rows[-1][0]
            await asyncio.sleep(0)
        return found

    def _is_unsafe(self, value: bytes) -> bool:
        with suppress(RecordError):  # whoever claims it says so
            told = decode_row(value).reference
            now_ms = self._context.clock.wall_ms()
            return told is not None and safe_until_ms(self._context, told.timestamp_ms) < now_ms
        return False

    async def _copy(self, key: bytes, value: bytes) -> None:
        """Submit the copy of a row. Its key stays the same, so a claim stays too, and its outcome follows the copy."""
        copying = self.scheduler.copying
        while sum(copying.values()) >= READ_BYTES:
            self._written.clear()
            await self._written.wait()
        identity = key[IDENTITY_AT:]
        try:
            row = await self.read_row(decode_row(value), identity)
        except Exception as exc:  # noqa: BLE001 - lost, or a fault of the broker: its claim will see
            logger.debug("Row %s stays a reference: %r", identity.hex(), exc)
            return
        copy, claim = encode_row(row), self.scheduler.claimed.get(key)
        if len(copy) + BESIDE_ROW_BYTES > self._context.max_bytes or self._is_changed(key, value, row, claim):
            return
        if claim is not None:
            self._fill(claim, row)

        def settled(_committed: bool, _offsets: tuple[int, ...]) -> None:
            self.scheduler.copied(key)
            self._written.set()

        # held back where the changelog refuses it, it would put back a row that is settled meanwhile
        self._submit(Turn(rows=(Row(identity, copy, tier_of(value)),), on_settled=settled, spare=True))
        copying[key] = len(copy)

    def _fill(self, claim: Claim, copy: PendingRow) -> None:
        """Have a claim have what its row will have: it is not lost any more, and waits on as a copy."""
        claim.reference = None
        for at, (each, waiting) in enumerate(self._queue):
            if each is claim:
                self._queue[at] = claim, replace(waiting, value=copy.value, headers=copy.headers)
        if claim.on_hold is not None:
            held = decode_row(claim.on_hold.value or b"")
            held = replace(held, value=copy.value, headers=copy.headers, reference=None, revision=copy.revision + 1)
            claim.on_hold = claim.on_hold._replace(value=encode_row(held))

    def _is_changed(self, key: bytes, value: bytes, row: PendingRow, claim: Claim | None) -> bool:
        """Tell whether a row is another one than was read, or is to be: the next look sees what is left of it."""
        identity = key[IDENTITY_AT:]
        replaced = self._sequences is not None and not self._sequences.has(identity, row.key)
        replaced = replaced or key in self.scheduler.copying
        changed = replaced or self._pending is None or self._pending.get(key) != value
        if changed or claim is None:
            return changed
        held_to_ms = None if claim.on_hold is None else decode_row(claim.on_hold.value or b"").due_at_ms
        return claim.changing or claim.cancelled != bool(row.flags & CANCELLED) or row.hold_next_ms != held_to_ms

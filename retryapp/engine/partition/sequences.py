"""Keep order within a sequence: the records of one key, or of the whole partition.

Only the head of a sequence runs: the earliest of its records that has no final outcome. While the head waits for its
next attempt, those behind it wait too, undelivered, their attempts unspent; other sequences go on.

Behind a head that runs, records wait in the window. Behind one that waits in the table each is settled with a *held*
row, so that the offset goes on; not with `order="partition"`, where the full window is what stops the partition. Who is
head follows from positions alone, also at an opening: nothing is written to make a record the head, so no crash can
lose that.

The turns of an ordered handler never overtake each other (`engine.lane.refused`), and a successor's is submitted after
its predecessor's. So a crash takes a sequence back to an earlier record, and never changes its order.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedRowError, NewerRowError
from retryapp.core.headers import RETRY_ORIGIN_TIMESTAMP_MS
from retryapp.core.metadata import clamped
from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import IDENTITY_AT, OFFSET_AT, identity_of, origin_offset, queue_in
from retryapp.core.rows import SEQUENCE, PendingRow, decode_row, hold_of, is_held, is_stopped, row_header
from retryapp.engine.delivery.damage import end_instead
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.caps import Caps
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.line import Line, up_to
from retryapp.engine.partition.stops import held, in_place_of_stop, stop
from retryapp.engine.partition.unread import Unread
from retryapp.ports import PendingTable

FEW: Final = 8
"""Rows up to which new records wait in the window behind a head that runs: so a sequence leaves the table again."""
_LOAD_ROWS: Final = 500
_TIME: Final = RETRY_ORIGIN_TIMESTAMP_MS.encode()
_KEY_BYTES: Final = 32
"""Longer keys are named by their hash."""


class Sequences:
    """The sequences of one session of a partition."""

    def __init__(
        self,
        context: DeliveryContext,
        partition: int,
        given_up: GivenUp,
        start_offset: int,
        end_offset: int,
        *,
        start: Callable[[Run], None],
        settle: Callable[[Run, Turn], None],
        submit: Callable[[Turn], None],
        kept: Callable[[Run], bool],
    ) -> None:
        """Begin without any.

        Args:
            context: of the handler.
            partition: its number.
            given_up: runs that go on, also of earlier sessions; their sequences wait.
            start_offset: of the main topic.
            end_offset: where it ended when the lane opened.
            start: runs a first delivery.
            settle: takes the turn of a first delivery that does not run now.
            submit: takes a turn that settles none.
            kept: tells whether the place of a first delivery has the row of a record that its topic has lost.
        """
        self.wake: Callable[[], None] = lambda: None
        """Called when a row is the head of its sequence now."""
        self._context = context
        self._given_up = given_up
        given_up.ended = self.advance
        self._start = start
        self._settle = settle
        self._submit = submit
        self._kept = kept
        self._end_offset = end_offset
        self.by_key = context.handler.order is not Order.PARTITION
        self._holds = context.handler.order is Order.KEY
        self._holding = context.handler.holding
        self._caps = Caps(self._holding)
        self._partition = partition
        self._prefix = identity_of(Origin(context.handler.main, context.topic_id, partition, 0))[:OFFSET_AT]
        self._lines: dict[bytes, Line] = {}
        self._ready: dict[bytes, None] = {}
        """Sequences whose head has a row that may run, unless it is not due yet, in their turn."""
        self._table: PendingTable
        """That of `load`, which comes first."""
        self.aside: dict[bytes, bytes] = {}
        """Keys of due rows that are not heads (the handler had no order when they failed), by identity."""
        self._reached = start_offset
        """All records of the main topic before this offset are taken in, or were settled before; and what became of
        them is in the lane, unless they are open."""
        self._early: list[tuple[int, bytes, bytes | None]] = []
        """Rows from there on, which an earlier session or a replay has left, their sequences, and the times of their
        records: others may come before them, the last ones first."""
        self._unwritten: dict[bytes, bytes] = {}
        """Rows that are not in the table yet: their sequences, by identity."""
        self._owed: dict[int, bytes] = {}
        """Heads that have ended before a row of their sequence, and may not be in the lane yet, by offset."""
        self._gone: set[bytes] = set()
        """Rows whose records the main topic has lost with its end. They are before all others."""
        self._unread = Unread()
        self.lost: list[bytes] = []
        """Rows that stop sequences and cannot be read, by identity: those of the session's begin, rising."""

    def name(self, key: bytes | None) -> bytes | None:
        """Return the sequence of a record with this key; None: it has none."""
        if not self.by_key:
            return b""
        if key is None or len(key) <= _KEY_BYTES:
            return key
        return b"#" + blake2b(key, digest_size=_KEY_BYTES).digest()

    async def load(self, table: PendingTable) -> None:
        """Learn which rows earlier sessions have left, a few at a time."""
        self._table = table
        after: bytes | None = None
        while rows := table.page(after, _LOAD_ROWS):
            for key, value in rows:
                if self._holding.stops or not is_stopped(value):
                    self._learn(key, value)
            after = rows[-1][0]
            await asyncio.sleep(0)
        for line in self._lines.values():
            line.rows = deque(sorted(line.rows, key=self._position))
        in_order = sorted(self._lines, key=lambda name: self._position(self._lines[name].rows[0]))
        self._ready.update(dict.fromkeys(in_order))
        self._caps.parked.update(in_order)
        self._early.sort(reverse=True)

    def _learn(self, key: bytes, value: bytes) -> None:
        """Take a row that an earlier session has left."""
        identity, time = key[IDENTITY_AT:], None
        try:
            name = self.name(decode_row(value).key)
            time = row_header(value, _TIME)
        except (DamagedRowError, NewerRowError):
            name = None if self.by_key else b""
            if in_place_of_stop(key):
                self.lost.append(identity)
            if self.by_key and not is_stopped(value):  # of a stop there is a dead letter already
                self._unread.add(identity)
        if name is not None:
            self._lines.setdefault(name, Line()).rows.append(identity)
            if origin_offset(identity) >= self._end_offset:
                self._gone.add(identity)
            if self._is_early(identity):
                self._early.append((origin_offset(identity), name, time))

    def _position(self, identity: bytes) -> tuple[bool, bytes]:
        """Return what orders rows; those of a former main topic of this name, or beyond its end, come first."""
        return identity[:OFFSET_AT] == self._prefix and identity not in self._gone, identity

    def _is_early(self, identity: bytes) -> bool:
        return self._position(identity)[0] and origin_offset(identity) >= self._reached

    # -- first deliveries ----------------------------------------------------------------------------------------

    def has_row(self, record: Record) -> bool:
        """Tell whether a record that is taken in has a row.

        A topic that lost its end has other records at the same offsets now, with other times.
        """
        at = bisect_left(self._early, -record.offset, key=lambda each: -each[0])
        offset, _, time = self._early[at] if at < len(self._early) else (-1, b"", None)
        return record.damage is None and (offset, time) == (record.offset, b"%d" % clamped(record.timestamp_ms, -1))

    @property
    def has_early(self) -> bool:
        """Whether something waits until `handed_over`, or `pass_to`, lets it run."""
        return bool(self._early or self._owed)

    def read_to(self, position: int) -> None:
        """Note that the main topic is read up to a position, past transaction markers too."""

    def pass_to(self, position: int) -> None:
        """Let rows before a position run: all records there are taken in, and no outcome there waits for the offset."""
        if position > self._reached:
            self._reached = position
            while self._early and self._early[-1][0] < position:
                self.advance(self._early.pop()[1])

    def arrive(self, run: Run) -> None:
        """Take a first delivery, in offset order: it starts, waits in the window, or is settled with a held row."""
        name = run.sequence = self.name(run.record.key)
        if name is None:
            self._start(run)
            return
        line = self._lines.setdefault(name, Line())
        line.waiting.append(run)
        self.advance(name)

    def _hold(self, name: bytes, line: Line, run: Run) -> bool:
        """Settle a first delivery with a held row; tell whether that fits."""
        turn, identity = held(self._context, run.record), run.place
        if turn is None:
            return False
        at = len(line.rows)
        if line.rows and self._position(line.rows[-1]) >= self._position(identity):  # of a handler without an order
            at = bisect_left(line.rows, self._position(identity), key=self._position)
        if self._kept(run) or (at < len(line.rows) and line.rows[at] == identity):
            return False  # a row is in its place: that ends first
        line.rows.insert(at, identity)
        line.failed = line.failed and at > 0
        self._unwritten[identity] = name
        self._settle(run, turn)
        return True

    # -- rows ----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `heads` may have some."""
        return bool(self._ready or self._unread)

    def heads(
        self,
        table: PendingTable,
        limit: int,
        max_bytes: int,
        due: int,
        claimed: Collection[bytes],
        most: dict[int, int],
    ) -> list[tuple[bytes, bytes]]:
        """Return rows that are heads now, held or put aside, with their keys, as `up_to` does; each is to be claimed.

        So are those that too many wait for, and those that cannot be read. Other heads are found when they are due. Of
        those that were put aside, `due` at most, and `most` of some queues, which are less by these then.
        """
        later: dict[bytes, None] = {}
        found = up_to(self._heads(table, due, claimed, most, later), limit, max_bytes)
        self._ready |= later
        return found

    def _heads(
        self,
        table: PendingTable,
        due: int,
        claimed: Collection[bytes],
        most: dict[int, int],
        later: dict[bytes, None],
    ) -> Iterator[tuple[bytes, bytes]]:
        yield from self._unread.claimable(table, claimed)
        while self._ready:
            name = next(iter(self._ready))
            del self._ready[name]
            line = self._lines.get(name)
            if line is None or not line.rows or self._is_busy(name, line) or self._is_early(line.rows[0]):
                continue
            if line.rows[0] in self._unwritten:  # a command has put or moved it there since its sequence was ready
                continue
            key = table.find(line.rows[0])
            value = None if key is None else table.get(key)
            if key is None or value is None:
                raise RuntimeError(f"the table has no row {line.rows[0].hex()}, which is the head of its sequence")
            aside, queue = line.rows[0] in self.aside, queue_in(key)
            if (aside and min(due, most.get(queue, due)) <= 0) or key in claimed:
                later[name] = None
            elif aside or is_held(value) or self._caps.is_surplus(line, hold_of(value)):
                due -= aside
                if queue in most:
                    most[queue] -= aside
                yield key, value
            elif not line.failed:
                line.failed = True
                self.advance(name)

    def claim(self, key: bytes, row: PendingRow, *, damaged: bool = False) -> bool:
        """Tell whether a row may run now, and note that it does; else it is put aside."""
        identity = key[IDENTITY_AT:]
        if damaged and self.by_key:
            self._unread.add(identity)  # before anything behind it begins
            self._lose(identity)
            return True
        name = self.name(row.key)
        if name is None:
            return True
        line = self._lines.get(name)
        is_head = line is not None and bool(line.rows) and line.rows[0] == identity and not self._is_early(identity)
        if line is not None and is_head and not self._is_busy(name, line):
            line.running, line.failed = True, not row.held
            self._take_up(identity)
            return True
        self.aside[identity] = key
        self._table.put_aside(key)
        return False

    def _take_up(self, identity: bytes) -> None:
        """Have a scan find a row again, if it was put aside."""
        if (key := self.aside.pop(identity, None)) is not None:
            self._table.take_up(key)

    def left(self, key: bytes, value: bytes) -> None:
        """Note that a row was not claimed that `heads` may have returned."""
        with suppress(DamagedRowError):
            if (name := self.name(decode_row(value).key)) is not None:  # one that is not ready is passed there
                self._ready[name] = None

    async def caught_up(self) -> None:
        """Wait until rows may run."""

    # -- what has ended ------------------------------------------------------------------------------------------

    def judged(self, run: Run, outcome: Outcome) -> Outcome:
        """Return the outcome that counts."""
        if run.sequence is None or not isinstance(outcome, Turn):
            return outcome
        if self._holding.stops:
            stop(run, outcome)
        line = self._lines.get(run.sequence)
        if line is not None and self._caps.exceeds(run, outcome, line):
            return end_instead(run, outcome, DeadReason.OVERFLOW)
        return outcome

    @property
    def full(self) -> bool:
        """Whether no record may come in, as so many sequences wait: not while rows wait for what is not read yet."""
        return self._caps.full and not self._early

    @property
    def blocked(self) -> str | None:
        """What waits in the table and keeps records on the main topic, for people; None: nothing."""
        line = self._lines.get(b"")
        if self.by_key or line is None or not line.waiting or not line.rows or line.running:
            return self._caps.blocked
        return f"later records wait for {line.head}"

    def is_surplus(self, row: PendingRow) -> bool:
        """Tell whether a row that is claimed is dead instead, as too many wait for it."""
        name = self.name(row.key)
        line = None if name is None else self._lines.get(name)
        return line is not None and self._caps.is_surplus(line, row.hold)

    def ended(self, run: Run, turn: Turn | int | None) -> bool:
        """Take the outcome of the head of a sequence; None: it has none, and stays the head.

        Tell whether its turn must be handed over now: a row comes after it, whose turn does not wait for the offset.
        """
        replaced = isinstance(turn, Turn) and any(row.identity == run.place for row in turn.rows)
        if turn is not None and (run.claim is not None or replaced) and self._unread.end(run.place):
            for each in list(self._lines):
                self.advance(each)
        name = run.sequence
        line = None if name is None else self._lines.get(name)
        if name is None or line is None or (turn is None and run.claim is None):  # that one runs in the next session
            return False
        waits = isinstance(turn, Turn) and any(row.value is not None for row in turn.rows)
        before_row = run.claim is None and not waits and bool(line.rows)
        if run.claim is not None:
            line.rows.popleft()
        if waits or turn is None:  # while it ran, earlier records may have been replayed
            at = bisect_left(line.rows, self._position(run.place), key=self._position)
            line.rows.insert(at, run.place)
            line.failed = (waits or line.failed) and at == 0
        else:
            line.failed = False
        if waits and (run.claim is None or self._holding.releases):
            self._unwritten[run.place] = name
        line.first, line.running = False, before_row
        if before_row:
            self._owed[run.record.offset] = name
        else:
            self.advance(name)
        return before_row

    def handed_over(self, position: int) -> None:
        """Let sequences go on whose heads are before a position: no outcome there waits for the offset."""
        for offset in [offset for offset in self._owed if offset < position]:
            name = self._owed.pop(offset)
            self._lines[name].running = False
            self.advance(name)

    def applied(self, turns: Sequence[Turn]) -> None:
        """Note that turns are in the table, and that the main topic is read up to where they move its offset."""
        for turn in turns:
            if self._gone:  # others may come to be in their places
                self._gone.difference_update(row.identity for row in turn.rows if row.value is None)
            for row in turn.rows if self._unwritten else ():
                if (name := self._unwritten.pop(row.identity, None)) is not None:
                    self.advance(name)
        self.pass_to(max(turn.moves_to for turn in turns))

    # -- commands ------------------------------------------------------------------------------------------------

    def removed(self, identity: bytes, key: bytes | None) -> None:
        """Note that a row goes that waits, and has no claim."""
        self._take_up(identity)
        name = self.name(key)
        if name is not None and (line := self._lines.get(name)) is not None:
            self._remove(name, line, identity)

    def _lose(self, identity: bytes) -> None:
        """Note that a row goes whose sequence it does not tell any more."""
        self._take_up(identity)
        for name, line in list(self._lines.items()):
            self._remove(name, line, identity)

    def _remove(self, name: bytes, line: Line, identity: bytes) -> None:
        if identity in line.older:
            line.older.remove(identity)
        elif identity in line.rows:
            line.failed = line.failed and line.rows[0] != identity
            line.rows.remove(identity)
            self.advance(name)

    def moved(self, identity: bytes, row: PendingRow) -> None:
        """Note that a row gets another time or hold, and so another key: it may run once that is in the table."""
        self._take_up(identity)
        name = self.name(row.key)
        line = None if name is None else self._lines.get(name)
        if name is None or line is None:
            return
        self._unwritten[identity] = name
        if line.rows and line.rows[0] == identity:
            line.failed = row.hold != SEQUENCE

    def has(self, identity: bytes, key: bytes | None) -> bool:
        """Tell whether a row waits in its sequence: else a newer record has replaced it, or is to."""
        name = self.name(key) if self.by_key else None
        return name is None or ((line := self._lines.get(name)) is not None and identity in line.rows)

    def waits_behind(self, identity: bytes, key: bytes | None) -> bool:
        """Tell whether another record of its sequence runs, or is to run, before a row."""
        line = None if (name := self.name(key)) is None else self._lines.get(name)
        return line is not None and bool(line.rows) and (line.running or line.rows[0] != identity)

    def replaces(self, _run: Run) -> bool:
        """Tell whether the outcome of a first delivery replaces the row in its place."""
        return False

    def may_come_back(self, _identity: bytes, _key: bytes | None) -> bool:
        """Tell whether a record of this key may be tried again that was dead."""
        return True

    def came_back(self, identity: bytes, value: bytes, key: bytes | None) -> None:
        """Note that a dead record gets a row again: in its place, or behind the head while that runs."""
        if (name := self.name(key)) is None:
            return
        if self._is_early(identity):
            insort(self._early, (origin_offset(identity), name, row_header(value, _TIME)), key=lambda each: -each[0])
        line = self._lines.setdefault(name, Line())
        first = int(line.running and not line.first and bool(line.rows) and name not in self._owed.values())
        if identity not in line.rows:  # else its sequence has stopped for it
            at = bisect_left(line.rows, self._position(identity), first, key=self._position)
            line.rows.insert(at, identity)
            self._caps.parked.add(name)
        line.failed = line.failed and line.rows[0] != identity
        self._unwritten[identity] = name

    def _is_behind(self, identity: bytes, run: Run) -> bool:
        """Tell whether a row comes after a first delivery: the handler had no order when it was written."""
        return self._position(identity)[0] and origin_offset(identity) > run.record.offset

    def _is_busy(self, name: bytes, line: Line) -> bool:
        # a record that is dead, and of which nobody knows whom it is to stop, stops all: its turn pauses the partition
        return line.running or name in self._given_up or (self._holding.stops and bool(self._unread))

    def advance(self, name: bytes) -> None:
        """Let the head of a sequence run if nothing of it does, and keep the window free of those behind it."""
        line = self._lines.get(name)
        if line is None:
            return
        self._caps.count(name, line)
        if not self._is_busy(name, line):
            if line.waiting and (not line.rows or self._is_behind(line.rows[0], line.waiting[0])):
                line.running = line.first = True
                self._start(line.waiting.popleft())
            elif not line.rows:
                del self._lines[name]
                return
            elif self._is_early(line.rows[0]):
                return
            elif line.rows[0] in self.aside if line.failed else line.rows[0] not in self._unwritten:
                self._ready[name] = None
                self.wake()
        waits_long = line.failed and not line.running
        while self._holds and line.waiting and not line.first and (waits_long or len(line.rows) > FEW):
            if self._caps.reached(line):
                self._caps.crowded[name] = line
                if waits_long and self._holding.releases and line.rows[0] not in self._unwritten:
                    self._ready[name] = None
                    self.wake()
                return
            if not self._hold(name, line, line.waiting[0]):
                return
            line.waiting.popleft()

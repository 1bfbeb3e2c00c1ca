"""Of each key only the newest record counts: a newer one replaces the one that waits.

1. A newer record runs at once, as attempt 1. A row of an older one cannot be claimed any more, and the newer one's
   outcome, whatever it is, removes it in the same turn.
2. While an older one runs, newer ones wait in the window, and each is replaced by the next. An older one that fails,
   and would be tried again, is superseded instead. So is one behind which a dead record of its key is replayed.
3. What replaces a record is on the main topic, unsettled, or in a row: a crash at any point leaves the newest.
4. An opening claims no row before the main topic is read up to where it ended then, or for `READ_S`.
5. A topic that has lost its end may have other records at the offsets of rows since, also between rows that were
   written after that. An opening looks at each row before a record comes in, for 5 s: one whose record is lost is
   older than all that are there, and replaces none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import Superseded
from retryapp.core.record import Origin, failure_id
from retryapp.core.row_keys import identity_of, origin_offset
from retryapp.core.rows import decode_row
from retryapp.engine.delivery.run import Outcome, Run
from retryapp.engine.lane.turn import Turn, observed, settling, to_event
from retryapp.engine.partition.line import Line
from retryapp.engine.partition.sequences import Sequences
from retryapp.ports import Event, PendingTable, Row

READ_S: Final = 30.0
"""Longest wait of rows for what is on the main topic at an opening."""
_TURN_ROWS: Final = 100


class Latest(Sequences):
    """The newest records of one session of a partition."""

    def __init__(
        self,
        *place: Any,
        find_lost: Callable[[Sequence[tuple[int, bytes | None]]], Awaitable[set[int]]],
        **calls: Any,
    ) -> None:
        """Begin as others do; `find_lost` is that of `engine.lane.recovery`."""
        super().__init__(*place, **calls)
        self._offsets_lost = find_lost

    @override
    async def load(self, table: PendingTable) -> None:
        await super().load(table)
        await self._find_lost()
        self._read = asyncio.Event()
        self.read_to(self._reached)
        for line in list(self._lines.values()):  # with another order a key may have had many
            *older, newest = [*line.older, *line.rows]  # some may have become older while others were looked at
            sure = [each for each in older if not self._is_early(each)]
            line.older, line.rows = older[len(sure) :], deque([newest])
            for at in range(0, len(sure), _TURN_ROWS):
                if (removal := self._removal(sure[at : at + _TURN_ROWS], origin_offset(newest))).rows:
                    self._submit(removal)
                await asyncio.sleep(0)

    async def _find_lost(self) -> None:
        """Find rows whose records the main topic does not have any more at their offsets."""
        offsets = await self._offsets_lost([(offset, time) for offset, _, time in self._early])
        lost = [each for each in self._early if each[0] in offsets]
        self._early = [each for each in self._early if each[0] not in offsets]
        for offset, name, _ in lost:
            origin = Origin(self._context.handler.main, self._context.topic_id, self._partition, offset)
            self._gone.add(identity_of(origin))
            self._lines[name].rows = deque(sorted(self._lines[name].rows, key=self._position))

    @override
    async def caught_up(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await self._read.wait()

    @override
    def read_to(self, position: int) -> None:
        if position >= self._end_offset:
            self._read.set()

    @override
    def advance(self, name: bytes) -> None:
        line = self._lines.get(name)
        while line and line.waiting and (len(line.waiting) > 1 or self._is_older(line.waiting[0], line)):
            run = line.waiting.popleft()
            turn = self._told(settling(run.record), run.origin, _newest(line))
            if line.rows and (gone := [each for each in line.older if not self._is_behind(each, run)]):
                line.older = [each for each in line.older if each not in gone]
                self._remove_with(turn, gone, run.record.offset)
            self._settle(run, turn)
        if line and line.older and not (line.rows or line.waiting or self._is_busy(name, line)):
            line.rows.append(line.older.pop())  # a command has taken the newer one away: nothing replaces this
        if line and not self._is_busy(name, line):
            left = 0 if line.waiting else 1
            while len(line.rows) > left:
                line.older.append(line.rows.popleft())
        super().advance(name)

    def _is_older(self, run: Run, line: Line) -> bool:
        return bool(line.rows) and self._is_behind(line.rows[-1], run)

    @override
    def _is_busy(self, name: bytes, line: Line) -> bool:
        """While a row is on its way to the table, too: what replaces it finds it there."""
        return super()._is_busy(name, line) or bool(line.rows and line.rows[0] in self._unwritten)

    @override
    def replaces(self, run: Run) -> bool:
        """A row there that another record is to replace is this one's, too: each could wait for the other."""
        own = None if run.sequence is None else self._lines.get(run.sequence)
        place = run.place
        line = next((line for line in self._lines.values() if place in line.older), None)
        if line is None or own is None:
            return False
        if line is not own:
            line.older.remove(place)
            own.older.append(place)
        return True

    @override
    def may_come_back(self, identity: bytes, key: bytes | None) -> bool:
        if (name := self.name(key)) is None or (line := self._lines.get(name)) is None:
            return True
        if line.first or line.waiting or not line.rows:
            return False
        return self._position(line.rows[-1]) < self._position(identity)

    @override
    def came_back(self, identity: bytes, value: bytes, key: bytes | None) -> None:
        super().came_back(identity, value, key)
        if (name := self.name(key)) is not None:
            self.advance(name)

    @override
    def judged(self, run: Run, outcome: Outcome) -> Outcome:
        line = None if run.sequence is None else self._lines.get(run.sequence)
        if run.sequence is None or line is None:
            return outcome
        rows = () if isinstance(outcome, int) else tuple((row.identity, row.value) for row in outcome.rows if row.value)
        if (line.waiting or len(line.rows) > 1) and rows and isinstance(outcome, Turn):
            row, replays = decode_row(rows[0][1]), 0 if run.metadata is None else run.metadata.replays
            seen = tuple(each for each in outcome.observations if each.event not in (Event.SCHEDULED, Event.DEFERRED))
            numbers = {"delivery": row.delivery, "attempt": row.attempt, "replays": replays}
            outcome, rows = self._told(run.settle(observations=seen), run.origin, _newest(line), **numbers), ()
        self._unwritten.update((identity, run.sequence) for identity, _ in rows)
        if line.older:
            if isinstance(outcome, int):
                done = observed(Event.SUCCEEDED, self._context.handler.main, run.record, attempt=1)
                outcome = run.settle(fine=True, observations=(done,))
            older, line.older = line.older, []
            self._remove_with(outcome, older, run.origin.offset)
        return outcome

    @override
    def applied(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            for row in turn.rows:
                if row.value is None:  # until here a scan finds it
                    self._take_up(row.identity)
        super().applied(turns)

    def _remove_with(self, turn: Turn, identities: Sequence[bytes], by: int) -> None:
        """Have a turn remove rows as well, before it writes one of its own: that may be in the place of one of them."""
        more = self._removal(identities, by)
        turn.rows = more.rows + turn.rows
        turn.publishes += more.publishes
        turn.observations += more.observations

    def _removal(self, identities: Sequence[bytes], by: int) -> Turn:
        """Return the turn that removes rows of the table: the record at offset `by` replaces them."""
        turn = Turn()
        for identity in identities:
            if (key := self._table.find(identity)) is None or (value := self._table.get(key)) is None:
                raise RuntimeError(f"the table has no row {identity.hex()}, which a newer record replaces")
            try:
                row = decode_row(value)
            except DamagedRowError:
                self._unread.add(identity)  # it is dead with its own bytes
                self.wake()
                continue
            turn.rows += (Row(identity, None, "?"),)
            replays, main = 0, self._context.handler.main
            origin = Origin(main, self._context.topic_id, self._partition, origin_offset(identity))
            with suppress(DamagedMetadataError):  # then only a former main topic's id is not known
                if (metadata := decode_metadata(row.headers)) is not None:
                    origin, replays = metadata.origin, metadata.replays
            self._told(turn, origin, by, delivery=row.delivery, attempt=row.attempt, replays=replays)
        return turn

    def _told(self, turn: Turn, origin: Origin, by: int, **numbers: Any) -> Turn:
        """Add the event of a record that is replaced to its turn."""
        handler, identity = self._context.handler, failure_id(self._context.handler.group, origin)
        numbers |= {"by_offset": by, "at_ms": self._context.clock.wall_ms()}
        named: Any = {"group": handler.group, "handler": handler.name, "failure_id": identity}
        event = Superseded(origin=origin.text, **named, **numbers)
        turn.publishes += (to_event(event, topology=handler.topology, partition=self._partition),)
        attempt = numbers.get("attempt")
        turn.observations += (observed(Event.SUPERSEDED, handler.main, origin, failure_id=identity, attempt=attempt),)
        return turn


def _newest(line: Line) -> int:
    """Return the offset of the newest record that waits: it replaces the others."""
    return line.waiting[-1].record.offset if line.waiting else origin_offset(line.rows[-1])

"""Keep the dead-letter table of an open lane. It only answers queries, so no fault of it reaches the lane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from retryapp.core.control import LetterMark, OutgoingMark, is_mark, mark_of
from retryapp.core.dead_index import IndexedLetter
from retryapp.core.errors import DiskFullError, StoreBrokenError
from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import CommitLostError
from retryapp.core.record import Record
from retryapp.engine.lane.shared_letters import LettersUnknownError, SharedLetters
from retryapp.ports import Clock, DeadLetterTable, DeadRow, LaneBatch, LaneReceipt, TopicPartition, TopicReader

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_FORGET_S = 3600.0
"""How often the table forgets what retention has deleted from its topic."""
_READ_ON_S = 60.0
"""The same where letters have a handler: what was committed meanwhile is read again, and letters wait until it is."""
_REFILL_S = 5.0
_OPEN_S = 0.1
"""How often it is looked whether a transaction has ended that was open at the end of the topic."""


class DeadLetterKeeper:
    """Fills a dead-letter table from its topic and forgets what retention deletes, as long as the lane is open.

    Letters that the lane publishes meanwhile are written at once, but move `next_offset` only once the table is filled:
    before, it would pass letters that are not read yet. A table that fails is opened and filled again;
    it is deleted first, unless only open files were wanting.

    Where letters have a handler (`shared`), its lane writes marks, too: then only what is read moves `next_offset`.
    """

    def __init__(
        self,
        lane: str,
        open_table: Callable[[], DeadLetterTable],
        *,
        dlq: TopicPartition,
        reader: TopicReader,
        clock: Clock,
        shared: SharedLetters | None = None,
    ) -> None:
        self.known = asyncio.Event()
        """Set while the table has all that its topic has; where letters have a handler, while its lane is open here."""
        self.table: DeadLetterTable | None = None
        """None: not open yet, or failed."""
        self.filled = False
        """The table has been read to the end of its topic since it opened."""
        self._lane = lane
        self._open_table = open_table
        self._dlq = dlq
        self._reader = reader
        self._clock = clock
        self._shared = shared
        self._faulty = False
        self._end: int | None = None
        """How far the topic is read before the table is known: to the end that it had, open transactions included."""
        self._marked: set[int] = set()
        """Letters that the lane has marked since it opened: other marks that are read of them are older."""
        self.task = self._start()
        if shared is not None:
            shared.join(self)

    def write(self, sent: Sequence[tuple[int, Outgoing]]) -> None:
        """Write letters and marks that the lane has published just now, in the order of their offsets."""
        marks = [out.told for _, out in sent if isinstance(out, OutgoingMark)]
        others = [(offset, out) for offset, out in sent if not isinstance(out, OutgoingMark)]
        now_ms = self._clock.wall_ms()
        letters = [DeadRow(offset, out.headers, out.key, now_ms) for offset, out in others]
        self._put(letters, marks, sent[-1][0] + 1 if self._shared is None else None)
        if self._shared is not None:
            self._shared.let_go(mark.letter for mark in marks)

    def take(self, marks: Sequence[LetterMark]) -> None:
        """Write marks that the lane of the letters' handler has committed just now."""
        self._put((), marks, None)

    def read_again(self) -> None:
        """Read on to the end of the topic: the lane of the letters' handler has opened, maybe after others."""
        self.known.clear()
        self._end = None
        self.task.cancel()
        self.task = self._start()

    def rebuild(self) -> None:
        """Drop the table and fill it anew: it may have marks of a transaction that the broker has rolled back.

        Raises:
            EnvironmentFault: it does not open, so it is still there: opened later, it would have those marks.
        """
        self.table = self.table or self._open_table()
        self._drop(CommitLostError(self._lane, f"{self._dlq.topic} may not have kept the last marks of its handler"))
        self.task.cancel()
        self.task = self._start()

    def _put(self, letters: Sequence[DeadRow], marks: Sequence[LetterMark], next_offset: int | None) -> None:
        if self.table is None:
            return  # they are read when it is filled
        try:
            _write(self.table, letters, marks, next_offset if self.known.is_set() else None)
            if not self.known.is_set():
                self._marked.update(mark.letter for mark in marks)
        except Exception as exc:  # noqa: BLE001 - whatever it is: the lane must go on
            self._fail(exc)

    # -- what lanes ask ------------------------------------------------------------------------------------------

    def find(self, failure_id: str) -> IndexedLetter | None:
        """Ask the table, as `mark_of` does."""
        return self._ask(lambda table: table.find(failure_id))

    def newest(self, failure_id: str) -> tuple[int, str | None] | None:
        """Ask the table, as `mark_of` does."""
        return self._ask(lambda table: table.newest(failure_id))

    def mark_of(self, letter: int) -> str | None:
        """Ask the table.

        Raises:
            LettersUnknownError: it is not there, or has failed just now.
        """
        return self._ask(lambda table: table.mark_of(letter))

    def _ask(self, question: Callable[[DeadLetterTable], _T]) -> _T:
        if self.table is None:
            raise LettersUnknownError(f"the dead-letter table of lane {self._lane} is being made anew")
        try:
            return question(self.table)
        except Exception as exc:
            self._fail(exc)
            raise LettersUnknownError(f"the dead-letter table of lane {self._lane} has failed: {exc}") from exc

    # -- what fails, and is read ---------------------------------------------------------------------------------

    def _fail(self, fault: Exception) -> None:
        """Have the table made anew a little later."""
        self._drop(fault)
        self.task.cancel()
        self.task = self._start(_REFILL_S)

    def _start(self, wait_s: float = 0.0) -> asyncio.Task[None]:
        return asyncio.create_task(self._keep(wait_s), name=f"dead-{self._lane}")

    def _drop(self, fault: Exception) -> None:
        level = logging.DEBUG if self._faulty else logging.WARNING  # once until it is filled again
        logger.log(level, "The dead-letter table of lane %s failed, and will be filled again: %s", self._lane, fault)
        table, self.table, self._faulty = self.table, None, True
        self.filled = False
        self.known.clear()
        self._end = None
        self._marked.clear()
        if isinstance(fault, StoreBrokenError) and table is not None:
            table.close()  # which deletes it if it is damaged: for want of open files it is not
        elif table is not None:
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
                    self._end = None  # a broker that is away is not asked ten times a second
            wait_s = self._rest_s

    @property
    def _rest_s(self) -> float:
        if self.known.is_set():
            return _FORGET_S if self._shared is None else _READ_ON_S
        return _REFILL_S if self._end is None else _OPEN_S

    async def _refresh(self, table: DeadLetterTable) -> None:
        known_to = table.next_offset
        first, end = (await self._reader.bounds([self._dlq]))[self._dlq]
        # of a transaction without an end, committed readers see less than the lane has written to the table
        if end < known_to and await self._reader.written_end(self._dlq) < known_to:
            self._drop(CommitLostError(self._lane, f"{self._dlq.topic} was made again, or has lost its end"))
            return
        gone = True
        while gone:
            gone = table.forget_before(first) > 0
            await asyncio.sleep(0)
        if self._shared is not None and self._end is None:
            self.known.clear()  # so that the next opening has less to read
            self._end = await self._reader.written_end(self._dlq)
        if not self.known.is_set():

            def take(records: list[Any], position: int) -> None:
                try:
                    _take(table, records, position, self._marked)
                except Exception as exc:  # of any kind: each reading after this one would fail, too
                    self._drop(exc)
                    raise

            reached = await self._reader.read(self._dlq, table.next_offset, take, background=True)
            self.filled = True
            if self._end is not None and reached < self._end:
                return
            self._end = None
            if not (self._shared is None or self._shared.handled_here):
                return
            self.known.set()
            self._marked.clear()
            self._faulty = False
            if self._shared is not None:
                self._shared.go_on()


def _take(table: DeadLetterTable, records: Sequence[Any], next_offset: int, but: Collection[int]) -> None:
    """Write records of a dead-letter topic: letters, and marks of letters before them, `but` some."""
    letters, marks = list[DeadRow](), list[LetterMark]()
    for record in records:
        headers = tuple(record.headers)
        if is_mark(headers):
            told = mark_of(headers, record.value)
            if told is not None and told.letter not in but:
                marks.append(told)
        else:
            died_ms = record.timestamp_ms if isinstance(record, Record) else record.timestamp
            letters.append(DeadRow(record.offset, headers, record.key, died_ms))
    _write(table, letters, marks, next_offset)


def _write(
    table: DeadLetterTable, letters: Sequence[DeadRow], marks: Sequence[LetterMark], next_offset: int | None
) -> None:
    if letters or not marks:
        table.write(letters, None if marks else next_offset)
    if marks:  # last: a table that has read past a mark has it
        table.mark({each.letter: (each.mark, each.command) for each in marks}, next_offset)


def dead_rows(topics: Collection[str], batch: LaneBatch, receipt: LaneReceipt) -> dict[str, list[tuple[int, Outgoing]]]:
    """Return what a committed batch has on dead-letter topics, by topic, with offsets."""
    found: dict[str, list[tuple[int, Outgoing]]] = {}
    for outgoing, offset in zip(batch.publishes, receipt.published_offsets, strict=True):
        if outgoing.topic in topics:
            found.setdefault(outgoing.topic, []).append((offset, outgoing))
    return found

"""Which prefix of a partition's offsets has an outcome, and what was counted of it.

Handlers finish in any order; offsets may only be committed as a prefix, and what a record publishes must not become
visible before everything ahead of it is done, or a crash would repeat it. `OffsetWindow` holds outcomes back until all
earlier records have theirs. Gaps in offsets (transaction markers, compaction) are normal: order is by arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from retryapp.core.lifecycle import Progress
from retryapp.core.marks import Tally
from retryapp.engine.handler import Handler
from retryapp.engine.turn import Turn, to_event
from retryapp.ports import TopicPartition

T = TypeVar("T")


class _Entry(Generic[T]):
    __slots__ = ("added_ms", "done", "outcome", "size")

    def __init__(self, size: int, added_ms: int) -> None:
        self.size = size
        self.added_ms = added_ms
        self.done = False
        self.outcome: T


class OffsetWindow(Generic[T]):
    """The records of one source partition that are being worked on, in offset order.

    Life of a record: `add` when it is taken in, `finish` with its outcome, and `release` hands outcomes out, oldest
    first, once nothing before them is open.
    """

    __slots__ = ("_bytes", "_entries", "_index", "_last")

    def __init__(self) -> None:
        self._entries: deque[_Entry[T]] = deque()
        self._index: dict[int, _Entry[T]] = {}
        self._bytes = 0
        self._last = -1

    def __len__(self) -> int:
        """Return how many records are not released yet."""
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Size of the records that are not released yet."""
        return self._bytes

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest record that is not released was taken in, or None. Its age is the release lag."""
        return self._entries[0].added_ms if self._entries else None

    def add(self, offset: int, size: int = 0, *, now_ms: int = 0) -> None:
        """Take a record in; a ValueError: the source delivered something twice or out of order."""
        if offset <= self._last:
            raise ValueError(f"offset {offset} after {self._last}: records of a partition must arrive in order")
        self._last = offset
        entry: _Entry[T] = _Entry(size, now_ms)
        self._entries.append(entry)
        self._index[offset] = entry
        self._bytes += size

    def finish(self, offset: int, outcome: T, more: int = 0) -> None:
        """Note the outcome of a record; `more`: bytes that it holds besides the record's."""
        entry = self._index.pop(offset)
        entry.outcome = outcome
        entry.done = True
        if more:
            entry.size += more
            self._bytes += more

    def release(self) -> list[T]:
        """Return the outcomes of the finished prefix, in offset order."""
        out: list[T] = []
        entries = self._entries
        while entries and entries[0].done:
            entry = entries.popleft()
            self._bytes -= entry.size
            out.append(entry.outcome)
        return out


class Counting:
    """Counts what one session settles of a partition of the main topic, and says it now and then.

    Each turn takes along what is counted once it has taken effect, and an event's turn that nothing is. The lane puts
    that beside the offset (`engine.notes`): whoever opens it next goes on from there, in the next range.
    """

    def __init__(self, handler: Handler, main: TopicPartition, tally: Tally, next_offset: int) -> None:
        self._handler = handler
        self._main = main
        self._tally = tally
        self._next_offset = next_offset

    def settle(self, turns: Iterable[Turn]) -> None:
        """Count the records that turns settle, in the order of offsets."""
        for turn in turns:
            ok, skipped = (turn.settles if each else 0 for each in (turn.fine, turn.skipped))
            turn.tally = self._tally = self._tally.plus(received=turn.settles, ok=ok, skipped=skipped)
            self._next_offset = turn.next_offset

    def due(self, now_ms: int, every_ms: int) -> bool:
        """Tell whether it is time for an event."""
        return now_ms - self._tally.since_ms >= every_ms

    def say(self, now_ms: int) -> Turn | None:
        """Return the turn that says what was counted, and begin to count anew; None where that is nothing.

        It moves no offset, but it takes one along: what stands beside that is not counted any more.
        """
        tally, to_ms = self._tally, max(now_ms, self._tally.since_ms)
        if not tally.received:
            return None
        event = Progress(
            group=self._handler.group,
            handler=self._handler.name,
            main=self._handler.main,
            partition=self._main.partition,
            from_offset=tally.from_offset,
            to_offset=self._next_offset,
            from_ms=tally.since_ms,
            to_ms=to_ms,
            received=tally.received,
            first_try_ok=tally.first_try_ok,
            failed=tally.failed,
            skipped=tally.skipped,
        )
        self._tally = Tally(from_offset=self._next_offset, since_ms=to_ms)
        return Turn(
            source=self._main,
            next_offset=self._next_offset,
            publishes=(to_event(event, topology=self._handler.topology, partition=self._main.partition),),
            tally=self._tally,
        )

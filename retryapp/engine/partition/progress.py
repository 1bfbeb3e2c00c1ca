"""Find the prefix of a partition's offsets that has outcomes, and count its records.

Handlers finish in any order, and offsets may only be committed as a prefix. Outcomes after a record that still runs
wait for it a short time, then they go ahead of it (`engine.partition.beyond`). Gaps in offsets (transaction markers,
compaction) are normal: order is by arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from retryapp.core.lifecycle import Progress
from retryapp.core.marks import Tally
from retryapp.engine.handler.handler import Handler
from retryapp.engine.lane.turn import Turn, to_event
from retryapp.ports import TopicPartition

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    offset: int
    size: int
    added_ms: int
    done: bool = False
    gone: bool = False
    """Its outcome went ahead; what it has now is for when the prefix reaches it."""
    look: int = 0
    """Number of looks before it was done."""
    outcome: T = field(init=False)


class OffsetWindow(Generic[T]):
    """The unreleased records of one source partition, in offset order.

    Life of a record: `add` when it is taken in, `finish` with its outcome, `release` once nothing before it is open. If
    that takes long, `go_ahead` hands its outcome out before.
    """

    __slots__ = ("_entries", "_index", "_late", "_looks", "bytes", "last", "waiting")

    def __init__(self) -> None:
        self.bytes = 0
        self.waiting = 0
        """Outcomes that are neither released nor gone ahead."""
        self._late = 0
        """Of these: how many there were at the last look already."""
        self._looks = 0
        self._entries: deque[_Entry[T]] = deque()
        self._index: dict[int, _Entry[T]] = {}
        self.last = -1
        """Offset of the record that was taken in last."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest record was taken in, or None. Its age is the release lag."""
        return self._entries[0].added_ms if self._entries else None

    def waits_from(self, counts: Callable[[T], bool]) -> int | None:
        """Return the offset of the first outcome that counts and waits for an open record; None: none does."""
        entries = self._entries if self.waiting else ()
        waiting = (entry for entry in entries if entry.done and not entry.gone)
        return next((entry.offset for entry in waiting if counts(entry.outcome)), None)

    def add(self, offset: int, size: int = 0, *, now_ms: int = 0) -> None:
        """Take a record in; raise ValueError if the source delivered it twice or out of order."""
        if offset <= self.last:
            raise ValueError(f"offset {offset} after {self.last}: records of a partition must arrive in order")
        self.last = offset
        entry: _Entry[T] = _Entry(offset, size, now_ms)
        self._entries.append(entry)
        self._index[offset] = entry
        self.bytes += size

    def has(self, offset: int) -> bool:
        """Tell whether a record is here that has no outcome."""
        return offset in self._index

    def finish(self, offset: int, outcome: T, more: int = 0) -> None:
        """Set the outcome of a record; `more`: bytes that it holds besides the record's."""
        entry = self._index.pop(offset)
        entry.outcome = outcome
        entry.done = True
        entry.look = self._looks
        entry.size += more
        self.bytes += more
        self.waiting += 1

    def release(self) -> list[T]:
        """Return the outcomes of the finished prefix, in offset order."""
        out: list[T] = []
        entries = self._entries
        while entries and entries[0].done:
            entry = entries.popleft()
            self.bytes -= entry.size
            if not entry.gone:
                self._leave(entry)
            out.append(entry.outcome)
        return out

    def _leave(self, entry: _Entry[T]) -> None:
        self.waiting -= 1
        if entry.look < self._looks:
            self._late -= 1

    def is_late(self) -> bool:
        """Look at it, at regular intervals: tell whether an outcome has waited since the look before."""
        late, self._late = self._late > 0, self.waiting
        self._looks += 1
        return late

    def went_ahead(self, offset: int, outcome: T) -> None:
        """Note that a record was settled before it was taken in; `outcome` is for when the prefix reaches it."""
        entry = self._index.pop(offset)
        entry.outcome = outcome
        entry.done = entry.gone = True

    def go_ahead(self, replace: Callable[[int, T], T | None]) -> list[T]:
        """Return outcomes that wait for an open record, in offset order.

        Args:
            replace: returns what the prefix will find in place of an outcome; None: this one waits on.
        """
        out: list[T] = []
        for entry in self._entries if self.waiting else ():
            if entry.done and not entry.gone and (then := replace(entry.offset, entry.outcome)) is not None:
                out.append(entry.outcome)
                self.bytes -= entry.size  # what it holds goes with its turn
                entry.size = 0
                entry.outcome, entry.gone = then, True
                self._leave(entry)
        return out


class Counting:
    """Counts what one session settles of a partition of the main topic, for `progress` events.

    Each turn carries the tally after it; the turn of an event, an empty one. The lane commits it with the offset
    (`engine.lane.notes`), and the next session continues from there.
    """

    def __init__(self, handler: Handler, main: TopicPartition, tally: Tally, next_offset: int) -> None:
        self._handler = handler
        self._main = main
        self._tally = tally
        self._next_offset = next_offset

    def settle(self, turns: Iterable[Turn]) -> None:
        """Count the records that turns settle, in the order of offsets."""
        for turn in turns:
            ok, skipped, held = (turn.settles if each else 0 for each in (turn.fine, turn.skipped, turn.held))
            turn.tally = self._tally = self._tally.plus(received=turn.settles, ok=ok, skipped=skipped, held=held)
            self._next_offset = turn.next_offset

    def due(self, now_ms: int, every_ms: int) -> bool:
        """Tell whether it is time for an event."""
        return now_ms - self._tally.since_ms >= every_ms

    def say(self, now_ms: int) -> Turn | None:
        """Return the turn of a `progress` event, and count from zero; None if nothing was counted.

        It commits the present offset again, with an empty tally.
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
            held=tally.held,
        )
        self._tally = Tally(from_offset=self._next_offset, since_ms=to_ms)
        return Turn(
            source=self._main,
            next_offset=self._next_offset,
            publishes=(to_event(event, topology=self._handler.topology, partition=self._main.partition),),
            tally=self._tally,
        )

"""Which prefix of a partition's offsets has an outcome.

Handlers finish in any order; offsets may only be committed as a prefix, and what a record publishes must not become
visible before everything ahead of it is done, or a crash would repeat it. `OffsetWindow` holds outcomes back until all
earlier records have theirs. Gaps in offsets (transaction markers, compaction) are normal: order is by arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from retryapp.core.lifecycle import Progress
from retryapp.engine.handler import Handler
from retryapp.engine.turn import Turn, to_event

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
        """Take a record in.

        Args:
            offset: must be higher than every offset before.
            size: bytes it holds in memory.
            now_ms: epoch milliseconds.

        Raises:
            ValueError: the offset is not higher; the source delivered something twice or out of order.
        """
        if offset <= self._last:
            raise ValueError(f"offset {offset} after {self._last}: records of a partition must arrive in order")
        self._last = offset
        entry: _Entry[T] = _Entry(size, now_ms)
        self._entries.append(entry)
        self._index[offset] = entry
        self._bytes += size

    def finish(self, offset: int, outcome: T, more: int = 0) -> None:
        """Note the outcome of a record.

        Args:
            offset: the record's.
            outcome: what `release` hands out.
            more: bytes that the outcome holds in memory beside the record's own.

        Raises:
            KeyError: the record is not in the window.
        """
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


@dataclass(slots=True)
class ProgressTally:
    """Counts of one main-topic partition since the last `progress` event.

    Offsets have gaps (transaction markers), so an offset range is never a count: records are counted as they are
    settled.
    """

    next_offset: int
    """The last event, or the session's start, ended here."""
    since_ms: int
    received: int = 0
    first_try_ok: int = 0
    failed: int = 0
    skipped: int = 0

    def count(self, *, received: int, ok: int, skipped: int = 0) -> None:
        """Count settled first deliveries.

        Args:
            received: how many.
            ok: how many of them were fine at once.
            skipped: how many were passed over without a delivery.
        """
        self.received += received
        self.first_try_ok += ok
        self.skipped += skipped
        self.failed += received - ok - skipped

    def event(self, *, group: str, handler: str, main: str, partition: int, to_offset: int, now_ms: int) -> Progress:
        """Return the event for what was counted, and begin to count anew."""
        event = Progress(
            group=group,
            handler=handler,
            main=main,
            partition=partition,
            from_offset=self.next_offset,
            to_offset=to_offset,
            from_ms=self.since_ms,
            to_ms=max(now_ms, self.since_ms),
            received=self.received,
            first_try_ok=self.first_try_ok,
            failed=self.failed,
            skipped=self.skipped,
        )
        self.next_offset, self.since_ms = to_offset, event.to_ms
        self.received = self.first_try_ok = self.failed = self.skipped = 0
        return event

    def turn(self, handler: Handler, *, partition: int, to_offset: int, now_ms: int) -> Turn:
        """Return the turn that says what was counted, and begin to count anew."""
        event = self.event(
            group=handler.group,
            handler=handler.name,
            main=handler.main,
            partition=partition,
            to_offset=to_offset,
            now_ms=now_ms,
        )
        return Turn(publishes=(to_event(event, topology=handler.topology, partition=partition),))

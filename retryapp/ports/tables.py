"""The local tables of a lane: copies of topics on disk, with one owner; calls are synchronous and short."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retryapp.core.causes import CauseCount
from retryapp.core.dead_index import IndexedLetter
from retryapp.core.deduplicate import Seen
from retryapp.ports.flow import Row


class LocalTable(Protocol):
    """Common part of the tables."""

    @property
    def next_offset(self) -> int:
        """It reflects its topic up to here, exclusive."""

    def close(self) -> None:
        """Close it; its content stays."""

    def drop(self) -> None:
        """Close and delete it: its topic has everything."""


class PendingTable(LocalTable, Protocol):
    """The records of one handler and partition that wait, sorted by due time: `core.row_keys` and `core.rows`."""

    @property
    def last_written(self) -> int | None:
        """Offset of the last changelog record that it wrote; None once caught up, or if it may be compacted away."""

    @property
    def floor(self) -> int:
        """A table without rows that reads the topic from this offset on gets the same rows; it never falls."""

    def due(
        self,
        now_ms: int,
        limit: int,
        claimed: Collection[bytes] = (),
        *,
        max_bytes: int | None = None,
        most: Mapping[int, int] = {},
        aside: bool = True,
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        """Return rows `(key, value)` that are due and not `claimed`, in due order, and the next row's `due_at_ms`.

        At most `limit` rows with values of at most `max_bytes` in all, but at least one row; of a queue
        (`core.row_keys`) no more than `most` says; without `aside` none that was put aside. The next row is the first
        that is neither returned nor left out by one of these but `limit` and `max_bytes`; None without one.
        """

    def put_aside(self, key: bytes) -> None:
        """Have `due` leave out a row, where it is asked to, until `take_up`, or until the row is written or removed.

        However many these are, such a look costs the same.
        """

    def take_up(self, key: bytes) -> None:
        """End what `put_aside` began; nothing for another row."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, or None."""

    def find(self, identity: bytes) -> bytes | None:
        """Return the key of a record's row, or None."""

    @property
    def newest(self) -> int:
        """No row is of a record of the main topic behind this offset; -1: there was none."""

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows with a key after `after`, in due order: their queues do not count."""

    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        """Return `due_at_ms` of the first rows with `start_ms <= due_at_ms < stop_ms`, rising, at most `limit`."""

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows by tier; `?`: those that do not say theirs."""

    def causes(self) -> Sequence[CauseCount]:
        """Return how many rows each cause has, the most first: ``MAX_CAUSES`` and one of the rest.

        Rows that were never delivered, and damaged ones, have none.
        """

    def write(self, rows: Sequence[Row], changelog_offset: int | None) -> None:
        """Apply a committed batch, in order, and the changelog offset up to which the table is complete, atomically."""

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        """Apply changelog records `(identity, row or None)`, in order; other keys are skipped."""

    def recovered(self) -> None:
        """Note that the changelog was read to its end."""

    @property
    def flushing(self) -> bool:
        """Whether the next write would wait for the disk, because a recovery has written much."""

    def touch(self, now_ms: int) -> None:
        """Note that the table is in use."""


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A dead letter that is written to the index: its offset on the dead-letter topic and headers, never its value."""

    offset: int
    headers: tuple[tuple[str, bytes | None], ...]
    key: bytes | None = None
    append_ms: int = -1
    """When it was appended to the topic, epoch milliseconds: the broker's time, or of what was just published ours."""


class DeadLetterTable(LocalTable, Protocol):
    """The index of the dead letters of one handler and partition, by offset on the dead-letter topic."""

    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        """Add rows; `next_offset`: the topic has been read up to there. Marks stay."""

    def mark(self, marks: Mapping[int, tuple[str, str | None]], next_offset: int | None) -> None:
        """Note what became of letters, by their offsets, and the jobs that did it; `next_offset` as of `write`.

        At most 255 bytes each. The last mark counts, whether the letter was written before or comes later; it goes
        with its letter.
        """

    def find(self, failure_id: str) -> IndexedLetter | None:
        """Return the newest dead letter of a failure id, or None."""

    def newest(self, failure_id: str) -> tuple[int, str | None] | None:
        """Return the offset and the mark of what `find` returns: all that commands ask for, in half the time."""

    def mark_of(self, offset: int) -> str | None:
        """Return what became of the letter at an offset; None: nothing yet."""

    def forget_before(self, first_offset: int) -> int:
        """Remove rows below an offset, a few; return how many. Call again until nothing is removed."""


class SeenTable(LocalTable, Protocol):
    """The events of one handler and partition that were seen within the window."""

    def find(self, identity: bytes) -> Seen | None:
        """Return the row of an event, also one that has expired and is not swept yet; None when there is none."""

    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        """Put rows in, a later one of an event replacing the former, and forget some that have expired, atomically."""

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        """Apply changelog records `(key, row)`, in order; expired rows and other records are skipped."""

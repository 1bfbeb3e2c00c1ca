"""The local tables of a lane: copies of topics on a local disk, which may lag behind them.

One owner at a time; every call is synchronous and short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retryapp.core.deduplicate import Seen
from retryapp.ports.flow import Removal, Row


class LocalTable(Protocol):
    """What all of them have."""

    @property
    def dropped(self) -> str | None:
        """Why the copy on the disk had to be thrown away, or None."""
        ...

    @property
    def next_offset(self) -> int:
        """It reflects its topic up to here, exclusive."""
        ...

    def close(self) -> None:
        """Let go of it; what it holds stays."""
        ...

    def drop(self) -> None:
        """Let go of it and delete it: its topic has everything."""
        ...


class PendingTable(LocalTable, Protocol):
    """The parked records of one handler and partition, sorted by due time. Keys and values are those of `core.rows`."""

    @property
    def last_written(self) -> int | None:
        """Offset of the last changelog record that it wrote, to be looked for there.

        None once it was caught up, or where compaction may have taken the record away.
        """
        ...

    def due(
        self, now_ms: int, limit: int, claimed: Collection[bytes] = (), *, max_bytes: int | None = None
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        """Return what is due (`due_at_ms <= now_ms`, not `claimed`) and the next due time.

        `(key, value)` pairs sorted by due time then origin offset, at most `limit`, values together at most `max_bytes`
        except that the first row is always returned; and `due_at_ms` of the first row that is neither returned nor
        claimed, or None.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, or None."""
        ...

    def find(self, origin_offset: int) -> bytes | None:
        """Return the key of the row whose first delivery had this offset, or None."""
        ...

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows with a key greater than `after`, in key order."""
        ...

    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        """Return `due_at_ms` of the first rows with `start_ms <= due_at_ms < stop_ms`, rising, at most `limit`."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows by tier."""
        ...

    def write(self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None) -> None:
        """Apply a committed batch and the changelog offset up to which this table is complete, atomically."""
        ...

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        """Apply changelog records `(key, row or None)`, in order; keys that are no row keys are passed over."""
        ...

    def recovered(self) -> None:
        """Note that the changelog was read to its end."""
        ...

    def touch(self, now_ms: int) -> None:
        """Note that the table is in use."""
        ...


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A dead letter in the look-up table: where it lies and its headers, never its value."""

    offset: int
    """Offset on the dead-letter topic's partition."""
    headers: tuple[tuple[str, bytes | None], ...]


class DeadLetterTable(LocalTable, Protocol):
    """The dead letters of one handler and partition, by offset on the dead-letter topic."""

    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        """Add rows; `next_offset`: the topic has been read up to there."""
        ...

    def page(self, before: int | None, limit: int) -> list[DeadRow]:
        """Return at most `limit` rows with an offset below `before`, newest first."""
        ...

    def find(self, failure_id: str) -> DeadRow | None:
        """Return the newest dead letter of a failure id, or None."""
        ...

    def count(self) -> int:
        """Return the number of rows."""
        ...

    def forget_before(self, first_offset: int) -> int:
        """Remove rows below an offset, a few; return how many. Call again until nothing is removed."""
        ...


class SeenTable(LocalTable, Protocol):
    """The events of one handler and partition that were seen within the window."""

    def find(self, identity: bytes) -> Seen | None:
        """Return the row of an event, also one that has expired and is not swept yet; None when there is none."""
        ...

    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        """Put rows in, a later one of an event replacing the former, and forget some that have expired, atomically."""
        ...

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        """Apply changelog records `(key, row)`, in order; what is no row, or has expired, is passed over."""
        ...

"""The pending table: parked records of one handler and partition in RocksDB, sorted by due time.

The store's order is the firing order (`core.rows`), so what is due is the head of the table. Two things keep the head
cheap (RocksDB walks over every deleted key in front of the first live one):

* a low mark in memory: every key below it is known to be gone; a scan starts there, and a late insert lowers it;
* a range delete over that proven-empty prefix in every batch that removes rows.

An index by origin offset finds one record for a look-up; it is derived and written in the same batch.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rocksdict import WriteBatch

from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.headers import decode_metadata
from retryapp.core.rows import ROW_KEY_BYTES, decode_row, due_bound, parse_row_key
from retryapp.ports import Removal, Row
from retryapp.runtime.store import Store, StoreIdentity

_INDEX = b"\x01"
_ROWS_START = b"\x00"
_ROWS_END = b"\x01"
_OFFSET = struct.Struct(">Q")
_BULK = 4_000
_UNCOUNTED = "\0"
"""Stands in the counts from the first row of a recovery to the recount: a process killed in between counts at its next
start."""


def _index_key(origin_offset: int) -> bytes:
    return _INDEX + _OFFSET.pack(origin_offset)


def tier_of(value: bytes | None) -> str:
    """Return the tier that a row waits in, `?` when the row does not say."""
    if value is None:
        return "?"
    try:
        metadata = decode_metadata(decode_row(value).headers)
    except (DamagedRowError, DamagedMetadataError):
        return "?"
    return (metadata.tier if metadata else None) or "?"


class _Changes:
    """A batch in the making, and what is there once its steps so far have taken effect."""

    def __init__(self, store: Store) -> None:
        self.batch: WriteBatch = store.batch()
        self._store = store
        self._changed: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._changed[key] if key in self._changed else self._store.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._set(key, value)
        self._set(_index_key(parse_row_key(key).origin_offset), key)

    def remove(self, key: bytes) -> bool:
        """Remove a row, and its look-up unless that leads to another row of its record; tell whether it was there."""
        index = _index_key(parse_row_key(key).origin_offset)
        indexed = self.get(index) == key  # row and look-up are written together: one read says both
        there = indexed or self.get(key) is not None
        self._set(key, None)
        if indexed:
            self._set(index, None)
        return there

    def _set(self, key: bytes, value: bytes | None) -> None:
        self._changed[key] = value
        if value is None:
            self.batch.delete(key)
        else:
            self.batch.put(key, value)


class RocksPendingTable:
    """`ports.PendingTable` on RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int, max_age_ms: int | None) -> None:
        """Open the table; see `Store`."""
        self._store = Store(path, identity, now_ms=now_ms, max_age_ms=max_age_ms)
        self._now_ms = now_ms
        self._low = b""
        self._counts = dict(self._store.meta.counts)
        if _UNCOUNTED in self._counts:
            self.recount()

    @property
    def dropped(self) -> str | None:
        """Why the local copy that was found had to be thrown away, or None."""
        return self._store.dropped

    @property
    def next_offset(self) -> int:
        """The table reflects the changelog up to here, exclusive."""
        return self._store.meta.next_offset

    def due(
        self, now_ms: int, limit: int, claimed: Collection[bytes] = ()
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        """See `ports.PendingTable.due`."""
        bound = due_bound(now_ms + 1)
        found: list[tuple[bytes, bytes]] = []
        next_due: int | None = None
        first = True
        for key, value in self._rows(self._low):
            if first:
                self._low = max(self._low, key)
                first = False
            if key in claimed:
                continue
            if key >= bound or len(found) >= limit:
                next_due = parse_row_key(key).due_at_ms
                break
            found.append((key, value))
        return found, next_due

    def get(self, key: bytes) -> bytes | None:
        """See `ports.PendingTable.get`."""
        return self._store.get(key)

    def find(self, origin_offset: int) -> bytes | None:
        """See `ports.PendingTable.find`."""
        return self._store.get(_index_key(origin_offset))

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """See `ports.PendingTable.page`."""
        out: list[tuple[bytes, bytes]] = []
        for key, value in self._rows(max(self._low, after or b"")):
            if after is not None and key <= after:
                continue
            if len(out) >= limit:
                break
            out.append((key, value))
        return out

    def counts(self) -> Mapping[str, int]:
        """See `ports.PendingTable.counts`."""
        return {tier: n for tier, n in self._counts.items() if n}

    def write(self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None) -> None:
        """See `ports.PendingTable.write`.

        Raises:
            DiskFullError, StoreBrokenError: the table must not be trusted any more: `drop` it.
        """
        changes = _Changes(self._store)
        for row in puts:
            replaced = changes.get(row.key)
            if replaced is not None:
                self._count(tier_of(replaced), -1)
            self._put(changes, row.key, row.value)
            self._count(row.tier, 1)
        for removal in removes:
            if changes.remove(removal.key):
                self._count(removal.tier, -1)
        if removes and self._low:
            changes.batch.delete_range(_ROWS_START, self._low)
        self._commit(changes.batch, None if changelog_offset is None else changelog_offset + 1)

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        """Apply changelog records, in order; call `recount` after the last.

        Args:
            records: `(row key, row or None for a removal)`; keys that are no row keys (marks) are passed over.
            next_offset: offset after the last of them.
        """
        changes = _Changes(self._store)
        held = 0
        for key, value in records:
            if len(key) != ROW_KEY_BYTES:
                continue
            self._counts = {_UNCOUNTED: 1}
            if value is None:
                changes.remove(key)
            else:
                self._put(changes, key, value)
            held += 1
            if held >= _BULK:
                self._commit(changes.batch, None)
                changes, held = _Changes(self._store), 0
        self._commit(changes.batch, next_offset)

    def recount(self) -> None:
        """Count the rows by tier afresh: tombstones of a changelog do not say which tier they were of."""
        counts: dict[str, int] = {}
        for _, value in self._rows(b""):
            tier = tier_of(value)
            counts[tier] = counts.get(tier, 0) + 1
        self._counts = counts
        self._commit(self._store.batch(), None)

    def touch(self, now_ms: int) -> None:
        """Note that the table is in use."""
        self._now_ms = now_ms

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def drop(self) -> None:
        """Close the store and delete it: the changelog has everything."""
        self._store.drop()

    def _rows(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._store.items(start or _ROWS_START):
            if key >= _ROWS_END:
                return
            yield key, value

    def _put(self, changes: _Changes, key: bytes, value: bytes) -> None:
        changes.put(key, value)
        self._low = min(self._low, key)

    def _count(self, tier: str, change: int) -> None:
        self._counts[tier] = self._counts.get(tier, 0) + change

    def _commit(self, batch: WriteBatch, next_offset: int | None) -> None:
        meta = self._store.meta
        if next_offset is not None:
            meta.next_offset = max(meta.next_offset, next_offset)
        meta.counts = {tier: n for tier, n in self._counts.items() if n}
        self._store.write(batch, self._now_ms)

"""The pending table: parked records of one handler and partition in RocksDB, sorted by due time.

The store's order is the firing order (`core.rows`), so due rows are the head of the table. RocksDB walks over every
deleted key before the first live one, so two things keep the head cheap:

* a low mark in memory: no key below it exists; a scan starts there, and a late insert lowers it;
* a range delete below the low mark per few thousand removed rows. (An iterator sorts all that are not flushed: one in
  each batch made a scan of ten rows take 2.3 ms instead of 0.1 ms.)

An index by origin offset finds one record; its values hold the row's tier too, so that counts by tier follow every
change without decoding the removed row. A row later in the main topic than all that the table knows needs no look-up.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from rocksdict import WriteBatch
from typing_extensions import override

from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.headers import RETRY_TIER, HeaderReader
from retryapp.core.rows import ORIGIN_OFFSET_AT, ROW_KEY_BYTES, due_bound, parse_row_key, row_header
from retryapp.ports import PendingTable, Removal, Row
from retryapp.runtime.stores.store import RocksTable, Store, StoreIdentity

_INDEX = b"\x01"
_ROWS_START = b"\x00"
_ROWS_END = b"\x01"
_OFFSET = struct.Struct(">Q")
_TIER_NAME = RETRY_TIER.encode()
_PURGE_ROWS = 5_000  # removed rows before the first live one after which a range delete covers them
_SHORT_TAIL = 2_000
"""Records that a recovery writes through the write-ahead log: a restart that missed little writes no file."""


def tier_of(value: bytes | None) -> str:
    """Return the tier that a row waits in, `?` when the row does not say."""
    if value is None:
        return "?"
    try:
        raw = row_header(value, _TIER_NAME)
    except DamagedRowError:
        return "?"
    return "?" if raw is None else _tier_text(raw)


@lru_cache(maxsize=256)  # there are a few, and each row of a recovery names one
def _tier_text(raw: bytes) -> str:
    try:
        return HeaderReader({RETRY_TIER: raw}).name(RETRY_TIER)
    except DamagedMetadataError:
        return "?"


class _Changes:
    """A batch in the making, read as if its steps so far had taken effect; keeps the store's counts and `newest`."""

    def __init__(self, store: Store) -> None:
        self.batch: WriteBatch = store.batch()
        self._store = store
        self._changed: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes, tier: str) -> None:
        """Put a row and its look-up."""
        index = _INDEX + key[ORIGIN_OFFSET_AT:]
        offset = int.from_bytes(key[ORIGIN_OFFSET_AT:], "big")
        if offset > self._store.meta.newest:
            self._store.meta.newest = offset
        else:
            self._count(self._tier(key, self._get(index)), -1)
        self._count(tier, 1)
        look_up = key + tier.encode()
        self._changed[key], self._changed[index] = value, look_up
        self.batch.put(key, value)
        self.batch.put(index, look_up)

    def remove(self, key: bytes) -> None:
        """Remove a row, and its look-up unless that leads to another row of its record."""
        index = _INDEX + key[ORIGIN_OFFSET_AT:]
        look_up = self._get(index)
        removed = self._tier(key, look_up)
        if removed is not None:
            self._delete(key)
            self._count(removed, -1)
        if look_up is not None and look_up.startswith(key):
            self._delete(index)

    def _get(self, key: bytes) -> bytes | None:
        return self._changed[key] if key in self._changed else self._store.get(key)

    def _tier(self, key: bytes, look_up: bytes | None) -> str | None:
        if look_up is not None and look_up.startswith(key):  # written together: it says that the row is there
            return look_up[ROW_KEY_BYTES:].decode()
        value = self._get(key)  # most often there is none; else the record has a second row, which came later
        return None if value is None else tier_of(value)

    def _count(self, tier: str | None, change: int) -> None:
        counts = self._store.meta.counts
        if tier is not None:
            counts[tier] = counts.get(tier, 0) + change
            if not counts[tier]:
                del counts[tier]

    def _delete(self, key: bytes) -> None:
        self._changed[key] = None
        self.batch.delete(key)


class RocksPendingTable(RocksTable, PendingTable):
    """A pending table on RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int, max_age_ms: int | None) -> None:
        super().__init__(path, identity, now_ms=now_ms, max_age_ms=max_age_ms)
        self._last_written = self._store.meta.written  # not compacted yet: an older store is dropped (`max_age_ms`)
        self._low = b""
        self._removed = self._recovering = 0

    @property
    @override
    def last_written(self) -> int | None:
        return self._last_written

    @override
    def due(
        self, now_ms: int, limit: int, claimed: Collection[bytes] = (), *, max_bytes: int | None = None
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        bound = due_bound(now_ms + 1)
        found: list[tuple[bytes, bytes]] = []
        next_due: int | None = None
        size = 0
        first = True
        for key, value in self._rows(self._low):
            if first:
                self._low = max(self._low, key)
                first = False
            if key in claimed:
                continue
            size += len(value)
            too_much = bool(found) and max_bytes is not None and size > max_bytes
            if key >= bound or len(found) >= limit or too_much:
                next_due = parse_row_key(key).due_at_ms
                break
            found.append((key, value))
        return found, next_due

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    @override
    def find(self, origin_offset: int) -> bytes | None:
        look_up = self._store.get(_INDEX + _OFFSET.pack(origin_offset))  # as row keys end
        return None if look_up is None else look_up[:ROW_KEY_BYTES]

    @override
    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        out: list[tuple[bytes, bytes]] = []
        for key, value in self._rows(max(self._low, after or b"")):
            if after is not None and key <= after:
                continue
            if len(out) >= limit:
                break
            out.append((key, value))
        return out

    @override
    def counts(self) -> Mapping[str, int]:
        return dict(self._store.meta.counts)

    @override
    def write(self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None) -> None:
        changes = _Changes(self._store)
        for row in puts:
            changes.put(row.key, row.value, row.tier)
            self._low = min(self._low, row.key)
        for removal in removes:
            changes.remove(removal.key)
        self._removed += len(removes)
        if self._removed >= _PURGE_ROWS and self._low:
            changes.batch.delete_range(_ROWS_START, self._low)
            self._removed = 0
        if changelog_offset is not None:
            self._store.meta.written = changelog_offset
        self._commit(changes.batch, None if changelog_offset is None else changelog_offset + 1, self._now_ms)

    @override
    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        # The table does not become younger before `recovered`: recoveries that never reach the end could keep it for
        # longer than the changelog keeps the tombstones that it lacks.
        changes = _Changes(self._store)
        for key, value in records:
            if len(key) != ROW_KEY_BYTES:
                continue
            self._recovering += 1
            if value is None:
                changes.remove(key)
            else:
                changes.put(key, value, tier_of(value))
                self._low = min(self._low, key)
        logged = self._recovering <= _SHORT_TAIL
        self._commit(changes.batch, next_offset, self._store.meta.used_ms, logged=logged)

    @override
    def recovered(self) -> None:
        self._store.meta.written = self._last_written = None
        self._commit(self._store.batch(), None, self._now_ms)

    @override
    def touch(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def _rows(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._store.items(start or _ROWS_START):
            if key >= _ROWS_END:
                return
            yield key, value

    def _commit(self, batch: WriteBatch, next_offset: int | None, used_ms: int, *, logged: bool = True) -> None:
        meta = self._store.meta
        if next_offset is not None:
            meta.next_offset = max(meta.next_offset, next_offset)
        self._store.write(batch, used_ms, logged=logged)

    @override
    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        bound = due_bound(stop_ms)
        found: list[int] = []
        for key, _ in self._rows(max(self._low, due_bound(start_ms))):
            if key >= bound or len(found) >= limit:
                break
            found.append(int.from_bytes(key[:8], "big"))  # as `parse_row_key` reads it, without an object a row
        return found

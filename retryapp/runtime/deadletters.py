"""The dead-letter table: where each dead letter of a partition lies. Headers and coordinates, never values.

The dead-letter topic is its changelog: rows are written after the transaction that published the letter, and rebuilt by
reading the topic. Rows whose letter retention has deleted are forgotten.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.headers import decode_metadata
from retryapp.core.rows import PendingRow, decode_row, encode_row
from retryapp.ports import DeadRow
from retryapp.runtime.store import Store, StoreIdentity

_ROW = b"\x00"
_ROWS_END = b"\x01"
_INDEX = b"\x01"
_OFFSET = struct.Struct(">Q")
_ROW_COUNT = "rows"


def _row_key(offset: int) -> bytes:
    return _ROW + _OFFSET.pack(offset)


def _index_key(failure_id: str) -> bytes:
    return _INDEX + failure_id.encode()


def _failure_id(headers: tuple[tuple[str, bytes | None], ...]) -> str | None:
    try:
        metadata = decode_metadata(headers)
    except DamagedMetadataError:
        return None
    return metadata.failure_id if metadata else None


class RocksDeadLetterTable:
    """`ports.DeadLetterTable` on RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int) -> None:
        """Open the table; see `Store`."""
        self._store = Store(path, identity, now_ms=now_ms, max_age_ms=None)
        self._now_ms = now_ms

    @property
    def dropped(self) -> str | None:
        """Why the local copy that was found had to be thrown away, or None."""
        return self._store.dropped

    @property
    def next_offset(self) -> int:
        """The table reflects the topic up to here, exclusive."""
        return self._store.meta.next_offset

    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        """See `ports.DeadLetterTable.write`."""
        batch = self._store.batch()
        new = {row.offset for row in rows if self._store.get(_row_key(row.offset)) is None}
        for row in rows:
            batch.put(_row_key(row.offset), encode_row(PendingRow(None, None, row.headers, 0)))
            failure_id = _failure_id(row.headers)
            if failure_id is not None:
                batch.put(_index_key(failure_id), _OFFSET.pack(row.offset))
        meta = self._store.meta
        meta.counts[_ROW_COUNT] = meta.counts.get(_ROW_COUNT, 0) + len(new)
        if next_offset is not None:
            meta.next_offset = max(meta.next_offset, next_offset)
        self._store.write(batch, self._now_ms)

    def page(self, before: int | None, limit: int) -> list[DeadRow]:
        """See `ports.DeadLetterTable.page`."""
        start = _ROWS_END if before is None else _row_key(before)
        out: list[DeadRow] = []
        for key, value in self._store.items(start, backwards=True):
            if key >= start:
                continue
            if len(out) >= limit or not key.startswith(_ROW):
                break
            out.append(self._row(key, value))
        return out

    def find(self, failure_id: str) -> DeadRow | None:
        """See `ports.DeadLetterTable.find`."""
        raw: bytes | None = self._store.get(_index_key(failure_id))
        if raw is None:
            return None
        key = _ROW + raw
        value: bytes | None = self._store.get(key)
        return None if value is None else self._row(key, value)

    def count(self) -> int:
        """See `ports.DeadLetterTable.count`."""
        return self._store.meta.counts.get(_ROW_COUNT, 0)

    def forget_before(self, first_offset: int) -> int:
        """Remove rows whose dead letter is not on the topic any more.

        Args:
            first_offset: first offset that the topic still has.

        Returns:
            How many rows were removed.
        """
        gone: list[bytes] = []
        batch = self._store.batch()
        for key, value in self._store.items(_ROW):
            if key >= _row_key(first_offset):
                break
            gone.append(key)
            batch.delete(key)
            failure_id = _failure_id(self._row(key, value).headers)
            if failure_id is not None and self._store.get(_index_key(failure_id)) == key[1:]:
                batch.delete(_index_key(failure_id))
        if gone:
            meta = self._store.meta
            meta.counts[_ROW_COUNT] = max(0, meta.counts.get(_ROW_COUNT, 0) - len(gone))
            self._store.write(batch, self._now_ms)
        return len(gone)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def drop(self) -> None:
        """Close the store and delete it: the topic has everything."""
        self._store.drop()

    def _row(self, key: bytes, value: bytes) -> DeadRow:
        (offset,) = _OFFSET.unpack(key[1:])
        try:
            return DeadRow(offset, decode_row(value).headers)
        except DamagedRowError:
            return DeadRow(offset, ())

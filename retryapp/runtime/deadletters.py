"""The dead-letter table: where each dead letter of a partition lies. Headers and coordinates, never values.

The dead-letter topic is its changelog: rows are written after the transaction that published the letter, and rebuilt by
reading the topic, in any order and more than once. Rows whose letter retention has deleted are forgotten.

A row's value begins with its failure id, so that forgetting it finds its look-up without decoding the headers:
``length u32 | failure id | row of core.rows with the headers``, big-endian; length 0 where the headers name none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from retryapp.core.errors import DamagedRowError
from retryapp.core.headers import failure_id_of
from retryapp.core.rows import PendingRow, decode_row, encode_row
from retryapp.ports import DeadRow
from retryapp.runtime.store import Store, StoreIdentity

_ROW = b"\x00"
_ROWS_END = b"\x01"
_INDEX = b"\x01"
_OFFSET = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_ROW_COUNT = "rows"
FORGET_LIMIT = 500
"""Rows that are forgotten at once."""


def _row_key(offset: int) -> bytes:
    return _ROW + _OFFSET.pack(offset)


def _index_key(failure_id: str) -> bytes:
    return _INDEX + failure_id.encode()


def _encode(failure_id: str | None, row: DeadRow) -> bytes:
    name = (failure_id or "").encode()
    return _LENGTH.pack(len(name)) + name + encode_row(PendingRow(None, None, row.headers, 0))


def _decode(key: bytes, value: bytes) -> DeadRow:
    (offset,) = _OFFSET.unpack(key[1:])
    try:
        return DeadRow(offset, decode_row(value[_LENGTH.size + len(_named(value)) :]).headers)
    except DamagedRowError:
        return DeadRow(offset, ())


def _named(value: bytes) -> bytes:
    """Return the failure id of a row's value, empty when it has none."""
    (length,) = _LENGTH.unpack_from(value)
    return value[_LENGTH.size : _LENGTH.size + length]


class RocksDeadLetterTable:
    """`ports.DeadLetterTable` on RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int) -> None:
        """Open the table; see `Store`."""
        self._store = Store(path, identity, now_ms=now_ms, max_age_ms=None)
        self._now_ms = now_ms
        self._first = _ROW
        """Rows below were removed: RocksDB would walk over each of them."""

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
        newest: dict[bytes, bytes] = {}
        for row in rows:
            self._first = min(self._first, _row_key(row.offset))
            failure_id = failure_id_of(row.headers)
            batch.put(_row_key(row.offset), _encode(failure_id, row))
            if failure_id is not None:
                index, place = _index_key(failure_id), _OFFSET.pack(row.offset)
                known = newest[index] if index in newest else self._store.get(index)
                newest[index] = place if known is None else max(known, place)
        for index, place in newest.items():
            batch.put(index, place)
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
            out.append(_decode(key, value))
        return out

    def find(self, failure_id: str) -> DeadRow | None:
        """See `ports.DeadLetterTable.find`."""
        raw: bytes | None = self._store.get(_index_key(failure_id))
        if raw is None:
            return None
        key = _ROW + raw
        value: bytes | None = self._store.get(key)
        return None if value is None else _decode(key, value)

    def count(self) -> int:
        """See `ports.DeadLetterTable.count`."""
        return self._store.meta.counts.get(_ROW_COUNT, 0)

    def forget_before(self, first_offset: int, limit: int = FORGET_LIMIT) -> int:
        """Remove rows whose dead letter is not on the topic any more, the oldest first.

        Args:
            first_offset: first offset that the topic still has.
            limit: at most so many rows; call again until nothing is removed.

        Returns:
            How many rows were removed.
        """
        bound = _row_key(first_offset)
        batch = self._store.batch()
        gone = 0
        last = b""
        for key, value in self._store.items(self._first):
            if key >= bound or gone >= limit:
                break
            gone, last = gone + 1, key
            index = _INDEX + _named(value)
            if self._store.get(index) == key[1:]:
                batch.delete(index)
        if gone:
            batch.delete_range(self._first, last + b"\x00")
            self._first = last
            meta = self._store.meta
            meta.counts[_ROW_COUNT] = max(0, meta.counts.get(_ROW_COUNT, 0) - gone)
            self._store.write(batch, self._now_ms)
        return gone

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def drop(self) -> None:
        """Close the store and delete it: the topic has everything."""
        self._store.drop()

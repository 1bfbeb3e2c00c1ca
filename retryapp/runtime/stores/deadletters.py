"""The dead-letter table: where each dead letter of a partition lies. Headers and coordinates, never values.

It is rebuilt by reading the dead-letter topic, in any order and more than once. A row's value begins with its failure
id, so that removing it finds its look-up without decoding the headers: ``length u32 | failure id | core.rows row``,
big-endian; length 0 where the headers name none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from retryapp.core.errors import DamagedRowError
from retryapp.core.headers import failure_id_of
from retryapp.core.rows import PendingRow, decode_row, encode_row
from retryapp.ports import DeadLetterTable, DeadRow
from retryapp.runtime.stores.store import RocksTable

_ROW = b"\x00"
_ROWS_END = b"\x01"
_INDEX = b"\x01"
_MARK = b"\x02"
_OFFSET = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_ROW_COUNT = "rows"
FORGET_LIMIT = 500  # rows that one call removes at most


def _row_key(offset: int) -> bytes:
    return _ROW + _OFFSET.pack(offset)


def _index_key(failure_id: str) -> bytes:
    return _INDEX + failure_id.encode()


def _encode(failure_id: str | None, row: DeadRow) -> bytes:
    name = (failure_id or "").encode()
    return _LENGTH.pack(len(name)) + name + encode_row(PendingRow(None, None, row.headers))


def _decode(key: bytes, value: bytes) -> DeadRow:
    (offset,) = _OFFSET.unpack(key[1:])
    try:
        return DeadRow(offset, decode_row(value[_LENGTH.size + len(_named(value)) :]).headers)
    except DamagedRowError:
        return DeadRow(offset, ())


def _named(value: bytes) -> bytes:
    (length,) = _LENGTH.unpack_from(value)
    return value[_LENGTH.size : _LENGTH.size + length]


class RocksDeadLetterTable(RocksTable, DeadLetterTable):
    """A dead-letter table on RocksDB."""

    _first = _ROW
    """Rows below were removed: RocksDB would walk over each of them."""

    @override
    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
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

    @override
    def mark(self, offset: int, mark: str) -> None:
        if self._store.get(_row_key(offset)) is not None:
            batch = self._store.batch()
            batch.put(_MARK + _OFFSET.pack(offset), mark.encode())
            self._store.write(batch, self._now_ms)

    def _marked(self, row: DeadRow) -> DeadRow:
        raw = self._store.get(_MARK + _OFFSET.pack(row.offset))
        return row if raw is None else replace(row, mark=raw.decode())

    @override
    def page(self, before: int | None, limit: int) -> list[DeadRow]:
        start = _ROWS_END if before is None else _row_key(before)
        out: list[DeadRow] = []
        for key, value in self._store.items(start, backwards=True):
            if key >= start:
                continue
            if len(out) >= limit or not key.startswith(_ROW):
                break
            out.append(self._marked(_decode(key, value)))
        return out

    @override
    def find(self, failure_id: str) -> DeadRow | None:
        raw: bytes | None = self._store.get(_index_key(failure_id))
        if raw is None:
            return None
        key = _ROW + raw
        value: bytes | None = self._store.get(key)
        return None if value is None else self._marked(_decode(key, value))

    @override
    def count(self) -> int:
        return self._store.meta.counts.get(_ROW_COUNT, 0)

    @override
    def forget_before(self, first_offset: int, limit: int = FORGET_LIMIT) -> int:
        bound = _row_key(first_offset)
        batch = self._store.batch()
        gone = 0
        last = b""
        for key, value in self._store.items(self._first):
            if key >= bound or gone >= limit:
                break
            gone, last = gone + 1, key
            batch.delete(_MARK + key[1:])
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

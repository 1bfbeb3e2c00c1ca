"""Bytes of the pending table: the row's key, which sorts by due time, and the row.

Row key, 20 bytes, all numbers unsigned and big-endian::

    0        8           12             20
    | due_ms | partition | origin offset |
    |  u64   |    u32    |      u64      |

Big-endian numbers sort as their values do, so the store's order is the order of firing. The *origin's* offset makes the
key unique (two tier topics have the same offsets) and lets a record that is parked again with the same due time
overwrite itself.

Row, version 1, big-endian::

    | version u8 = 1 | timestamp_ms i64 | key_len i32 | value_len i32 | header_count u32 |
    | header_count x (name_len u32, value_len i32) | key | value | header_count x (name, value) |

A length of -1 is null. Names are UTF-8; bytes that are not (lenient readers escape them as lone surrogates) survive.
No row is empty, so ``b""`` is never valid and a tombstone is never a row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from retryapp.core.errors import DamagedRowError, NewerRowError
from retryapp.core.foreign import name_bytes
from retryapp.core.record import Headers, Record
from retryapp.core.values import value_type

ROW_VERSION: Final = 1
ROW_KEY_BYTES: Final = 20
ORIGIN_OFFSET_AT: Final = 12
"""Start of the origin's offset, the last part of a row key."""
ROW_OVERHEAD_BYTES: Final = 21
"""Bytes of a row without key, value and headers."""
ROW_HEADER_OVERHEAD_BYTES: Final = 8
"""Bytes that each header adds to its name and value."""

_NO_ROW_BYTES: Final = 1 << 62
_COMMON_HEADERS: Final = 64
"""Only rows with at most this many headers are cached (`_spans`): bounds the cache."""
_VERSIONS_END: Final = 0x20
"""No version reaches this: bytes that begin with a printable character are never a row."""
_KEY: Final = struct.Struct(">QIQ")
_FIXED: Final = struct.Struct(">BqiiI")
_DUE: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">Ii")


@dataclass(frozen=True, slots=True, order=True)
class RowKey:
    """A decoded row key; sorts as its bytes do."""

    due_at_ms: int
    partition: int
    origin_offset: int


@value_type
class PendingRow:
    """A parked record: key, value and headers as they stand on the tier record."""

    key: bytes | None
    value: bytes | None
    """Record value; empty with ``retry-null-value`` where the original was null."""
    headers: Headers
    """Foreign headers and ours, as on the tier record."""
    timestamp_ms: int
    """The tier record's timestamp: when the broker took it."""


def row_key(due_at_ms: int, partition: int, origin_offset: int) -> bytes:
    """Return the key of a row; raise `DamagedRowError` if a number is out of range."""
    try:
        return _KEY.pack(due_at_ms, partition, origin_offset)
    except struct.error as error:
        numbers = f"due={due_at_ms}, partition={partition}, offset={origin_offset}"
        raise DamagedRowError("row key", f"{numbers}: {error}") from error


def due_bound(due_at_ms: int) -> bytes:
    """Return the exclusive upper bound, for scans and deletes, of the row keys due before ``due_at_ms``."""
    return _DUE.pack(due_at_ms)


def parse_row_key(raw: bytes) -> RowKey:
    """Decode a row key; raise `DamagedRowError` if its length is not ``ROW_KEY_BYTES``."""
    if len(raw) != ROW_KEY_BYTES:
        raise DamagedRowError("row key", f"{len(raw)} bytes instead of {ROW_KEY_BYTES}")
    return RowKey(*_KEY.unpack(raw))


def row_of(record: Record) -> PendingRow:
    """Return the row that parks a tier record."""
    return PendingRow(record.key, record.value, record.headers, record.timestamp_ms)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def encode_row(row: PendingRow) -> bytes:
    """Encode a row; raise `DamagedRowError` for parts over 2**31 - 1 bytes or a timestamp over 64 bits."""
    lengths: list[int] = []
    parts: list[bytes] = []
    for name, value in row.headers:
        raw = name.encode() if name.isascii() else name_bytes(name)
        lengths += (len(raw), -1 if value is None else len(value))
        parts += (raw, value or b"")
    try:
        fixed = _FIXED.pack(ROW_VERSION, row.timestamp_ms, _length(row.key), _length(row.value), len(row.headers))
        table = struct.pack(">" + "Ii" * len(row.headers), *lengths)
    except struct.error as error:
        raise DamagedRowError("row", f"a length or the timestamp does not fit: {error}") from error
    return b"".join((fixed, table, row.key or b"", row.value or b"", *parts))


def row_header(raw: bytes, name: bytes) -> bytes | None:
    """Return the value of a row's first header of a name without decoding the others, or None; raises as decode_row."""
    try:
        version, _, key_length, value_length, count = _FIXED.unpack_from(raw)
    except struct.error:
        _lengths(raw)
        raise
    first = _FIXED.size + count * 8
    look = _spans if count <= _COMMON_HEADERS else _spans.__wrapped__
    total, spans = look(raw[_FIXED.size : first], len(name))
    if key_length > 0:
        first += key_length
    if value_length > 0:
        first += value_length
    if version != ROW_VERSION or key_length < -1 or value_length < -1 or first + total != len(raw):
        _lengths(raw)  # says what is wrong
    for start, length in spans:
        if raw.startswith(name, first + start):
            start += first + len(name)
            return None if length < 0 else raw[start : start + length]
    return None


@lru_cache(maxsize=1024)
def _spans(table: bytes, wanted: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Locate the headers whose names have a length; rows of one cause are alike, so the cache hits.

    Returns:
        Bytes of all headers, `_NO_ROW_BYTES` for impossible lengths; for each such header the start of its name,
        counted from the first header's name, and the length of its value.
    """
    if len(table) % 8:
        return _NO_ROW_BYTES, ()
    spans: list[tuple[int, int]] = []
    at = 0
    for name_length, value_length in _PAIR.iter_unpack(table):
        if name_length == wanted:
            spans.append((at, value_length))
        if value_length < -1:
            return _NO_ROW_BYTES, ()
        at += name_length + max(0, value_length)
    return at, tuple(spans)


def decode_row(raw: bytes) -> PendingRow:
    """Decode a row.

    Raises:
        NewerRowError: a newer retryapp wrote it.
        DamagedRowError: no possible version, or lengths that do not add up to exactly these bytes.
    """
    lengths, at = _lengths(raw)
    nulls = lengths.count(-1)
    ends = tuple(accumulate((max(0, length) for length in lengths) if nulls else lengths, initial=at))
    pieces: list[bytes | None] = [raw[start:end] for start, end in pairwise(ends)]
    if nulls:
        pieces = [None if length == -1 else piece for piece, length in zip(pieces, lengths, strict=True)]
    key, value, *parts = pieces
    names = [name.decode("utf-8", "surrogateescape") for name in parts[::2] if name is not None]  # none is: u32
    _, timestamp_ms, *_ = _FIXED.unpack_from(raw)
    return PendingRow(key, value, tuple(zip(names, parts[1::2], strict=True)), timestamp_ms)


def _lengths(raw: bytes) -> tuple[tuple[int, ...], int]:
    """Return the lengths of key, value, and each header's name and value, and the start of these parts."""
    if len(raw) < _FIXED.size:
        raise DamagedRowError("row", f"{len(raw)} bytes, fewer than the {_FIXED.size} of an empty one")
    version, _, key_length, value_length, count = _FIXED.unpack_from(raw)
    if version != ROW_VERSION:
        if ROW_VERSION < version < _VERSIONS_END:
            raise NewerRowError(version, ROW_VERSION)
        raise DamagedRowError("row", f"version {version}; known here is {ROW_VERSION}")
    if count * 8 > len(raw) - _FIXED.size:
        raise DamagedRowError("row", f"{count} headers do not fit into {len(raw)} bytes")
    at = _FIXED.size + count * 8
    lengths = (key_length, value_length, *struct.unpack_from(">" + "Ii" * count, raw, _FIXED.size))
    nulls = lengths.count(-1)
    if min(lengths) < -1 or sum(lengths) + nulls != len(raw) - at:
        raise DamagedRowError("row", f"its {len(lengths)} parts do not add up to {len(raw) - at} bytes")
    return lengths, at

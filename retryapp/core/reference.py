"""What waits in place of a record that is on the main topic: time, size and checksum of what the handler saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from zlib import crc32

from retryapp.core.foreign import name_bytes, shield
from retryapp.core.headers import RETRY_NO_PAYLOAD
from retryapp.core.record import Headers, Record, held_bytes
from retryapp.core.rows import PendingRow, Reference

_NULL: Final = b"\xff\xff\xff\xff"


def refer(record: Record, safe_until_ms: int) -> Reference:
    """Return what waits in place of a record, as its handler sees it."""
    size = held_bytes(record.key, record.value, record.headers)
    return Reference(record.timestamp_ms, size, _checksum(record), safe_until_ms)


def is_same(told: Reference, record: Record) -> bool:
    return refer(record, told.safe_until_ms) == told


def _checksum(record: Record) -> int:
    """Return the CRC-32 over key, value and headers; each has its length before it, so nothing can change places.

    It tells another record in the same place, of the same time and size: 1 in 2**32 passes. Damage on disk or on the
    way is found before, by the CRC-32C of Kafka's batch. The standard library has this one, in C, and no dependency has
    the other one for callers.
    """
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += (name_bytes(name), value)
    checksum = 0
    for part in parts:
        length = _NULL if part is None else len(part).to_bytes(4, "big")
        checksum = crc32(part or b"", crc32(length, checksum))
    return checksum


def travelling(waiting: Headers, record: Record) -> Headers:
    """Return the headers of a copy of a record, from those that have waited."""
    return shield(record.headers) + tuple(pair for pair in waiting if pair[0] != RETRY_NO_PAYLOAD)


def as_copy(row: PendingRow, record: Record) -> PendingRow:
    headers = travelling(row.headers, record)
    return replace(row, value=record.value or b"", headers=headers, reference=None, revision=row.revision + 1)

"""Keys of the pending table: the identity of a row, and the key that sorts it.

Identity, 21 bytes, the key on the changelog: a later row of a record replaces the former one, whenever it is due::

    | kind u8 = 1 | main topic u64 | partition u32 | origin offset u64 |

The main topic is a hash of its name and id: one that is deleted and made again has other records at the same offsets.
Keys of other kinds, or of other lengths, are not rows.

Row key, 29 bytes, the key in the local store: the due time, u64, then the identity. All numbers are unsigned and
big-endian, so the store's order is the order of delivery. The second byte of the due time, which is 0 in all times, is
the queue: that of a named circuit (a hash of its name) in a row that waits for its time since that service failed, else
0. So the rows of one circuit are together, and a scan for others skips them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from retryapp.core.errors import DamagedRowError
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.record import Origin

COPY: Final = 1
"""Kind of a row that holds a copy of its record."""
IDENTITY_BYTES: Final = 21
ROW_KEY_BYTES: Final = 29
IDENTITY_AT: Final = 8
"""Start of the identity in a row key."""
OFFSET_AT: Final = 13
"""Start of the offset of the first delivery in an identity."""
HELD_ROWS: Final = MAX_EPOCH_MS.to_bytes(8, "big")
"""Below the keys of held rows, and above all others."""
STOPPED_MS: Final = MAX_EPOCH_MS - 1
"""Time of rows of stopped sequences: they are never due, and are no held rows, which may run."""
MOST_QUEUES: Final = 256
_QUEUE_AT: Final = 1
"""Byte of a due time, and so of a row key, that has the queue."""
TIME_MASK: Final = (1 << 48) - 1
"""The bits of a time: those above are the queue."""
_IDENTITY: Final = struct.Struct(">BQIQ")
_KEY: Final = struct.Struct(">QBQIQ")
_DUE: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, order=True)
class RowKey:
    """A decoded row key; sorts as its bytes do."""

    due_at_ms: int
    kind: int
    main: int
    """Hash of the main topic and its id."""
    partition: int
    origin_offset: int


@lru_cache(maxsize=256)  # a handler has a few
def queue_of(circuit: str) -> int:
    """Return the queue of the rows of a circuit, from 1 to 255; 0 of those without one."""
    return 1 + blake2b(circuit.encode(), digest_size=1).digest()[0] % 255 if circuit else 0


def queue_in(row_key: bytes) -> int:
    """Return the queue of a row."""
    return row_key[_QUEUE_AT]


def due_order(row_key: bytes) -> bytes:
    """Return what sorts rows of all queues by due time."""
    return row_key[_QUEUE_AT + 1 :]


def in_queue(key: bytes, queue: int) -> bytes:
    """Return a row key, or its first bytes, as it is in another queue."""
    return key[:_QUEUE_AT] + bytes((queue,)) + key[_QUEUE_AT + 1 :]


@lru_cache(maxsize=256)  # a partition has records of one main topic, unless that was made again
def _main_hash(topic: str, topic_id: str) -> int:
    return int.from_bytes(blake2b(f"{topic}@{topic_id}".encode(), digest_size=8).digest(), "big")


def identity_of(origin: Origin) -> bytes:
    return _IDENTITY.pack(COPY, _main_hash(origin.topic, origin.topic_id), origin.partition, origin.offset)


def is_identity(key: bytes | None) -> bool:
    return key is not None and len(key) == IDENTITY_BYTES and key[0] == COPY


def origin_offset(identity: bytes) -> int:
    return int.from_bytes(identity[OFFSET_AT:], "big")


def row_key(due_at_ms: int, identity: bytes) -> bytes:
    """Return the key of a row in the local store; raise `DamagedRowError` if the due time is out of range."""
    try:
        return _DUE.pack(due_at_ms) + identity
    except struct.error as error:
        raise DamagedRowError("row key", f"due={due_at_ms}: {error}") from error


BEFORE_STOPPED: Final = _KEY.pack(STOPPED_MS, 0, 0, 0, 0)
"""Key before those of the rows of stopped sequences."""


def due_bound(due_at_ms: int) -> bytes:
    """Return the exclusive upper bound, for scans and deletes, of the row keys due before ``due_at_ms``."""
    return _DUE.pack(due_at_ms)


def parse_row_key(raw: bytes) -> RowKey:
    """Decode a row key; raise `DamagedRowError` if its length is not ``ROW_KEY_BYTES``."""
    if len(raw) != ROW_KEY_BYTES:
        raise DamagedRowError("row key", f"{len(raw)} bytes instead of {ROW_KEY_BYTES}")
    due_at_ms, *identity = _KEY.unpack(raw)
    return RowKey(due_at_ms & TIME_MASK, *identity)

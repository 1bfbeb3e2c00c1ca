"""The causes of one table's records, counted exactly: each count is written in the batch that changes its records.

Keys: 0x04 and the bytes of a cause; values: ``records u32 | attempts u64 | first_ms i64 | last_ms i64 | name_len u16 |
name | sample``, big-endian. At most ``MAX_CAUSES`` are told apart; records of further ones count as `OTHER`, a cause of
zeros. A record remembers under which it was counted, so that its removal finds it.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from rocksdict import WriteBatch

from retryapp.core.causes import CAUSE_BYTES, MAX_CAUSES, OTHER_CAUSE, CauseCount, cause_text
from retryapp.runtime.stores.store import Store

_PREFIX: Final = b"\x04"
OTHER: Final = bytes(CAUSE_BYTES)
_FIXED: Final = struct.Struct(">IQqqH")


class CauseTally:
    """Counts in memory, at most ``MAX_CAUSES + 1``; `changed` goes into the next batch."""

    def __init__(self, store: Store) -> None:
        self._counts: dict[bytes, CauseCount] = {}
        self._changed: set[bytes] = set()
        for key, value in store.items(_PREFIX):
            if not key.startswith(_PREFIX):
                break
            self._counts[key[1:]] = _decode(key[1:], value)

    def bucket_of(self, cause: bytes | None) -> bytes:
        """Return the bytes under which a record of a cause is counted now."""
        if cause is None or (cause not in self._counts and len(self._counts.keys() - {OTHER}) >= MAX_CAUSES):
            return OTHER
        return cause

    def add(
        self, bucket: bytes, name: str, *, attempts: int, first_ms: int, last_ms: int, sample: str, records: int = 1
    ) -> None:
        """Count records that have failed from `first_ms` to `last_ms`, with so many attempts in all."""
        was = self._counts.get(bucket)
        if was is None:
            known, name = (OTHER_CAUSE, OTHER_CAUSE) if bucket == OTHER else (cause_text(bucket), name)
            was = self._counts[bucket] = CauseCount(
                cause_id=known, name=name, records=0, attempts=0, first_ms=first_ms, last_ms=last_ms, sample=sample
            )
        was.records += records
        was.attempts += attempts
        was.first_ms = min(was.first_ms, first_ms)
        was.last_ms = max(was.last_ms, last_ms)
        was.name, was.sample = was.name or name, sample or was.sample
        self._changed.add(bucket)

    def remove(self, bucket: bytes, *, attempts: int, records: int = 1) -> None:
        """Take records out that were counted under `bucket`."""
        was = self._counts.get(bucket)
        if was is None:
            return
        was.records -= records
        was.attempts -= attempts
        if was.records <= 0:
            del self._counts[bucket]
        self._changed.add(bucket)

    def write(self, batch: WriteBatch) -> None:
        for bucket in self._changed:
            count = self._counts.get(bucket)
            if count is None:
                batch.delete(_PREFIX + bucket)
            else:
                batch.put(_PREFIX + bucket, _encode(count))
        self._changed.clear()

    def name_of(self, cause: bytes) -> str | None:
        count = self._counts.get(cause)
        return None if count is None else count.name

    def counts(self) -> list[CauseCount]:
        """Return copies, the most frequent first."""
        return sorted(map(replace, list(self._counts.values())), key=lambda count: (-count.records, count.cause_id))


def _encode(count: CauseCount) -> bytes:
    name = count.name.encode("utf-8", "backslashreplace")
    fixed = _FIXED.pack(count.records, count.attempts, count.first_ms, count.last_ms, len(name))
    return fixed + name + count.sample.encode()


def _decode(bucket: bytes, raw: bytes) -> CauseCount:
    records, attempts, first_ms, last_ms, length = _FIXED.unpack_from(raw)
    rest = raw[_FIXED.size :]
    return CauseCount(
        cause_id=OTHER_CAUSE if bucket == OTHER else cause_text(bucket), name=rest[:length].decode(), records=records,
        attempts=attempts, first_ms=first_ms, last_ms=last_ms, sample=rest[length:].decode(),
    )  # fmt: skip

"""The table of seen events on RocksDB: one handler and partition, by event, with an index by expiry.

    0x00 | event, 16 bytes              ->  row (`core.deduplicate`)
    0x01 | expires_ms u64 | event       ->  empty

Each write removes some expired rows, the oldest first, at least as many as it adds: the table does not grow, and no
call is long. A mark in memory says where the index begins, or every sweep would walk over what earlier ones deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from rocksdict import WriteBatch
from typing_extensions import override

from retryapp.core.deduplicate import IDENTITY_BYTES, Seen, decode_seen, encode_seen, live_rows
from retryapp.ports import SeenTable
from retryapp.runtime.stores.store import RocksTable

SWEEP_ROWS: Final = 200  # expired rows that a write removes at most, in addition to as many as it adds

_ROW: Final = b"\x00"
_INDEX: Final = b"\x01"
_END: Final = b"\x02"
_EXPIRY: Final = struct.Struct(">Q")


class RocksSeenTable(RocksTable, SeenTable):
    """A table of seen events on RocksDB. It is never too old: its changelog has no removals."""

    _low = _INDEX

    @override
    def find(self, identity: bytes) -> Seen | None:
        raw = self._store.get(_ROW + identity)
        return None if raw is None else decode_seen(identity, raw)

    @override
    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        batch = self._store.batch()
        self._sweep(batch, now_ms, len(rows) + SWEEP_ROWS)
        for row in rows:  # behind the sweep: a later step of a batch wins
            index = _INDEX + _EXPIRY.pack(row.expires_ms) + row.identity
            batch.put(_ROW + row.identity, encode_seen(row))
            batch.put(index, b"")
            self._low = min(self._low, index)
        meta = self._store.meta
        meta.next_offset = max(meta.next_offset, next_offset)
        self._store.write(batch, now_ms)

    @override
    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        self.write(live_rows(records, now_ms), next_offset, now_ms)

    def _sweep(self, batch: WriteBatch, now_ms: int, limit: int) -> None:
        bound = _INDEX + _EXPIRY.pack(now_ms + 1)
        for forgotten, (index, _) in enumerate(self._store.items(self._low)):
            self._low = index
            if index >= min(bound, _END) or forgotten >= limit:
                return
            batch.delete(index)
            row = self.find(index[-IDENTITY_BYTES:])
            if row is not None and row.expires_ms <= now_ms:  # else a later one has taken its place
                batch.delete(_ROW + row.identity)

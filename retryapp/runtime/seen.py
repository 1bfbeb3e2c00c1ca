"""The table of seen events on RocksDB: one handler and partition, by event, with an index by expiry.

    0x00 | event, 16 bytes              ->  row (`core.deduplicate`)
    0x01 | expires_ms u64 | event       ->  empty

Nothing in it has to be removed in time: whoever looks a row up sees when it expires. Each write forgets some of what
has expired, the oldest first, at least as many as it adds: the table does not grow, and no call is long. A mark in
memory says where the index begins, or every sweep would walk over all that earlier ones have deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rocksdict import WriteBatch

from retryapp.core.deduplicate import IDENTITY_BYTES, Seen, decode_seen, encode_seen, live_rows
from retryapp.runtime.store import Store, StoreIdentity

SWEEP_ROWS: Final = 200
"""Rows that a write forgets at most, beside as many as it adds."""

_ROW: Final = b"\x00"
_INDEX: Final = b"\x01"
_END: Final = b"\x02"
_EXPIRY: Final = struct.Struct(">Q")


class RocksSeenTable:
    """`ports.SeenStore` on RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int) -> None:
        """Open the table; see `Store`. It cannot be too old: its changelog has no removals that it could lack."""
        self._store = Store(path, identity, now_ms=now_ms, max_age_ms=None)
        self._low = _INDEX

    @property
    def dropped(self) -> str | None:
        """Why the local copy that was found had to be thrown away, or None."""
        return self._store.dropped

    @property
    def next_offset(self) -> int:
        """The table reflects the changelog up to here, exclusive."""
        return self._store.meta.next_offset

    def find(self, identity: bytes) -> Seen | None:
        """See `ports.SeenTable.find`.

        Raises:
            StoreBrokenError: that part of the store cannot be read.
        """
        raw = self._store.get(_ROW + identity)
        return None if raw is None else decode_seen(identity, raw)

    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        """See `ports.SeenTable.write`.

        Raises:
            DiskFullError, StoreBrokenError: the table must not be trusted any more: `drop` it.
        """
        batch = self._store.batch()
        self._sweep(batch, now_ms, len(rows) + SWEEP_ROWS)
        for row in rows:  # behind the sweep: a later step of a batch wins
            index = _index_key(row)
            batch.put(_ROW + row.identity, encode_seen(row))
            batch.put(index, b"")
            self._low = min(self._low, index)
        meta = self._store.meta
        meta.next_offset = max(meta.next_offset, next_offset)
        self._store.write(batch, now_ms)

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        """See `ports.SeenStore.recover`.

        Raises:
            NewerRowError: a newer retryapp wrote a row.
            DiskFullError, StoreBrokenError: the table must not be trusted any more: `drop` it.
        """
        self.write(live_rows(records, now_ms), next_offset, now_ms)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def drop(self) -> None:
        """Close the store and delete it: the changelog has everything."""
        self._store.drop()

    def _sweep(self, batch: WriteBatch, now_ms: int, limit: int) -> None:
        """Forget at most `limit` rows that have expired."""
        bound = _INDEX + _EXPIRY.pack(now_ms + 1)
        for forgotten, (index, _) in enumerate(self._store.items(self._low)):
            self._low = index
            if index >= min(bound, _END) or forgotten >= limit:
                return
            batch.delete(index)
            row = self.find(index[-IDENTITY_BYTES:])
            if row is not None and row.expires_ms <= now_ms:  # else a later one has taken its place
                batch.delete(_ROW + row.identity)


def _index_key(row: Seen) -> bytes:
    return _INDEX + _EXPIRY.pack(row.expires_ms) + row.identity

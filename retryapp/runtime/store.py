"""RocksDB as the tables of this process use it: one folder per table and partition, one shared cache for all.

A store is only a copy of a topic. It is written after the transaction that it reflects is committed, carries the offset
up to which it is complete, and is thrown away when that cannot be trusted: another topic (its id differs), a last use
so long ago that the changelog may have forgotten its tombstones, or an error while writing.

Key ranges of one store: row keys begin with 0x00 (big-endian milliseconds), the index with 0x01, meta data with 0x02,
so that a range delete over rows never meets the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
)

from retryapp.core.errors import DiskFullError, StoreBrokenError

_META = b"\x02meta"
FORMAT_VERSION = 1


@lru_cache(maxsize=1)
def _shared() -> tuple[Cache, WriteBufferManager]:
    """One block cache for the process, memtables accounted in it: memory does not grow with the number of partitions."""
    cache = Cache(64 << 20)
    return cache, WriteBufferManager.new_write_buffer_manager_with_cache(64 << 20, False, cache)


def _options() -> Options:
    cache, buffers = _shared()
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(16384)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(8 << 20)
    options.set_max_write_buffer_number(3)
    options.set_max_open_files(64)
    options.set_max_total_wal_size(64 << 20)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Which topic a store is a copy of. A store with another identity is dropped and rebuilt."""

    topic: str
    topic_id: str
    partition: int


@dataclass(slots=True, kw_only=True)
class StoreMeta:
    """What a store says of itself."""

    format: int
    topic: str
    topic_id: str
    partition: int
    used_ms: int
    """When it was last opened or written, epoch milliseconds."""
    next_offset: int
    """The store reflects the topic up to here, exclusive; 0 when nothing was read."""
    counts: dict[str, int]
    """Rows by tier."""


class Store:
    """One RocksDB folder. Not for several tasks at once; every call is synchronous and short."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int, max_age_ms: int | None) -> None:
        """Open the store, or make it anew where the old one cannot be trusted.

        Args:
            path: its folder.
            identity: the topic that it must be a copy of.
            now_ms: epoch milliseconds.
            max_age_ms: a store not used for longer is dropped; None never.

        Raises:
            DiskFullError: no room.
            StoreBrokenError: the folder cannot be used (rights, lock, damage that a fresh store does not cure).
        """
        self.path = path
        self.dropped: str | None = None
        """Why the store that was found had to be dropped; None when it was usable or there was none."""
        self._identity = identity
        existed = path.exists()
        try:
            self._db = self._open()
        except Exception as exc:
            if not existed or _is_locked(exc) or _is_full(exc):
                raise _named(path, exc) from exc
            self.dropped = f"it could not be opened ({exc})"
            self.remove()
            self._db = self._open_or_raise()
        meta = self._read_meta()
        if meta is None and existed and self.dropped is None and not self._is_empty():
            self.dropped = "it has no readable description of itself"
        elif meta is not None:
            self.dropped = self._distrust(meta, now_ms, max_age_ms)
        if self.dropped is not None and existed:
            self._db.close()
            self.remove()
            self._db = self._open_or_raise()
            meta = None
        self.meta = meta or StoreMeta(
            format=FORMAT_VERSION,
            topic=identity.topic,
            topic_id=identity.topic_id,
            partition=identity.partition,
            used_ms=now_ms,
            next_offset=0,
            counts={},
        )

    @property
    def db(self) -> Rdict:
        """The open database."""
        return self._db

    def items(self, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Walk over keys and values from `start` on; drop the iterator before any await (it holds the folder's lock)."""
        return cast("Iterator[tuple[bytes, bytes]]", self._db.items(backwards=backwards, from_key=start))

    def batch(self) -> WriteBatch:
        """Return an empty write batch."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch, now_ms: int) -> None:
        """Write a batch together with the store's description, atomically.

        Raises:
            DiskFullError, StoreBrokenError: it was not written, or nobody knows; drop the store.
        """
        self.meta.used_ms = now_ms
        batch.put(_META, json.dumps(asdict(self.meta)).encode())
        try:
            self._db.write(batch)
        except Exception as exc:
            raise _named(self.path, exc) from exc

    def close(self) -> None:
        """Close it; may be called twice."""
        self._db.close()

    def remove(self) -> None:
        """Delete the folder; the store must be closed."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _open(self) -> Rdict:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return Rdict(str(self.path), options=_options())

    def _open_or_raise(self) -> Rdict:
        try:
            return self._open()
        except Exception as exc:
            raise _named(self.path, exc) from exc

    def _is_empty(self) -> bool:
        return next(iter(self._db.keys()), None) is None

    def _read_meta(self) -> StoreMeta | None:
        raw: Any = self._db.get(_META)
        if raw is None:
            return None
        try:
            return StoreMeta(**json.loads(raw))
        except (ValueError, TypeError):
            return None

    def _distrust(self, meta: StoreMeta, now_ms: int, max_age_ms: int | None) -> str | None:
        if meta.format != FORMAT_VERSION:
            return f"its format is {meta.format}, known here is {FORMAT_VERSION}"
        mine = (self._identity.topic, self._identity.topic_id, self._identity.partition)
        theirs = (meta.topic, meta.topic_id, meta.partition)
        if mine != theirs:
            return f"it is a copy of {theirs}, not of {mine}"
        if max_age_ms is not None and now_ms - meta.used_ms > max_age_ms:
            idle_s, forgets_s = (now_ms - meta.used_ms) // 1000, 2 * max_age_ms // 1000
            return f"it was not used for {idle_s} s, and the changelog forgets tombstones after {forgets_s} s"
        return None


def _is_locked(exc: Exception) -> bool:
    return "lock" in str(exc).lower()


def _is_full(exc: Exception) -> bool:
    return "no space left" in str(exc).lower()


def _named(path: Path, exc: Exception) -> DiskFullError | StoreBrokenError:
    if _is_full(exc):
        usage = shutil.disk_usage(path.parent) if path.parent.exists() else None
        return DiskFullError(str(path), str(exc), usage.free if usage else None)
    return StoreBrokenError(str(path), str(exc))

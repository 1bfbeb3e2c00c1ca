"""RocksDB as the tables of this process use it: one folder per table and partition, one shared cache for all.

A store is a copy of a topic, written after the transaction that it reflects is committed. It carries the offset up to
which it is complete, and is dropped when that cannot be trusted: another topic (its id differs), a last use so long ago
that the changelog may have forgotten its tombstones, or an error while writing.

Row keys begin with 0x00 (big-endian milliseconds), indexes with 0x01, meta data with 0x02, marks with 0x03, counts of
causes with 0x04.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from retryapp.core.errors import DiskFullError, StoreBrokenError
from retryapp.runtime.machine.place import OWN_DATADIR

logger = logging.getLogger(__name__)

_META = b"\x02meta"
_HELD_HERE = "lock hold by"  # RocksDB's words (a path may contain LOCK)
FORMAT_VERSION = 7
"""Layout of the tables' keys and values; a store of another one is dropped and rebuilt from its topic."""
OPEN_S: Final = 60.0
"""The longest that a store may take to open; with a full log of writes it takes some seconds."""
_STDERR: Final = 2  # Faust replaces `sys.stderr`


def _unlogged() -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign,assignment]  # declared a method, it is a property
    return options


_UNLOGGED = _unlogged()


@lru_cache(maxsize=1)
def _shared() -> tuple[Cache, WriteBufferManager]:
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
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_max_open_files(64)
    options.set_max_total_wal_size(64 << 20)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Which topic a store is a copy of."""

    topic: str
    topic_id: str
    partition: int


@dataclass(slots=True, kw_only=True)
class StoreMeta:
    """What a store says of itself."""

    format: int = FORMAT_VERSION
    topic: str
    topic_id: str
    partition: int
    used_ms: int
    """When it last had all that its topic had, epoch milliseconds."""
    next_offset: int = 0
    """The store reflects the topic up to here, exclusive."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows by tier."""
    newest: int = -1
    """Largest origin offset that the store ever had a row of."""
    written: int | None = None
    """Offset of the last record of the topic that was written together with the store; None once it was read there."""
    floor: int = 0
    """No row's last record is before this offset."""
    next_floor: int = 0
    """Where the present generation began: the next floor, once the rows from before it are gone or written anew."""
    old: int = 0
    """How many those are."""
    generation: int = 0
    """The present one, 0 or 1."""


class Store:
    """One RocksDB folder, for one task at a time. Every call is synchronous and short."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int, max_age_ms: int | None) -> None:
        """Open the store, or make a new one if the old one cannot be trusted or was not used for `max_age_ms`.

        Raises:
            DiskFullError: no room.
            StoreBrokenError: the folder cannot be used (rights, lock, too many open files, damage that a fresh store
                does not cure).
        """
        self.path = path
        self.dropped: str | None = None  # why the old store was dropped; None if it was usable or there was none
        self._db: Rdict | None = None
        self.failed = False  # a read or write failed for a reason in the store: `close` deletes it
        self._unlogged = False  # a batch was written past the write-ahead log and may be in memory only
        self._identity = identity
        meta: StoreMeta | None = None
        if path.exists() and self._opening.exists():
            self.dropped = "the process that opened it last did not come back from that"
            self._forget(self.dropped)
        elif path.exists():
            try:
                self._db = db = self._open()
                meta = self._read_meta(db)
                self.dropped = self._distrust(db, meta, now_ms, max_age_ms)
            except Exception as exc:
                if _is_locked(exc) or _is_full(exc) or _lacks_files(exc):
                    raise _named(path, exc) from exc
                self.dropped = f"it could not be opened ({exc})"
            if self.dropped is not None:
                self._forget(self.dropped)
                meta = None
        self.meta = meta or StoreMeta(**asdict(identity), used_ms=now_ms)
        if self._db is None:
            try:
                self._db = self._open()
            except Exception as exc:
                raise _named(path, exc) from exc

    @property
    def db(self) -> Rdict:
        if self._db is None:
            raise StoreBrokenError(str(self.path), "it is closed")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        """Return a value, or None.

        Raises:
            StoreBrokenError: that part of the store cannot be read.
        """
        db = self.db
        try:
            value: bytes | None = db.get(key)
        except Exception as exc:
            raise self._broken(exc) from exc
        return value

    def items(self, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values from `start` on; drop the iterator before any await (it holds the folder's lock).

        RocksDB walks over what was removed until a key is there.

        Raises:
            StoreBrokenError: a part of the store cannot be read. (The library's own iterators end there, and what
                follows the damage would look removed.)
        """
        walk = self.db.iter()
        (walk.seek_for_prev if backwards else walk.seek)(start)
        step = walk.prev if backwards else walk.next
        while walk.valid():
            yield walk.key(), walk.value()
            step()
        try:
            walk.status()
        except Exception as exc:
            raise self._broken(exc) from exc

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield keys from `start` to before `end`, for counts: faster than `items`; what cannot be read is missing."""
        bound = ReadOptions()
        bound.set_iterate_upper_bound(end)
        return cast("Iterator[bytes]", self.db.keys(from_key=start, read_opt=bound))

    def batch(self) -> WriteBatch:
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch, used_ms: int, *, logged: bool = True, last: bool = False) -> None:
        """Write a batch together with the store's description, atomically; `used_ms`: see `StoreMeta`.

        `logged=False` skips the write-ahead log, for series of batches that the topic has. A crash still leaves a
        prefix of the batches: memtables reach the disk in order, each with its last description. The next logged write
        flushes them first, or its log would be replayed onto a store that lacks them; the `last` batch begins that.

        Raises:
            DiskFullError, StoreBrokenError: the outcome is unknown; close the store.
        """
        self.meta.used_ms = used_ms
        batch.put(_META, json.dumps({name: getattr(self.meta, name) for name in StoreMeta.__slots__}).encode())
        db = self.db
        try:
            if not logged:
                self._unlogged = True
                db.write(batch, _UNLOGGED)
                if last:
                    db.flush(wait=False)
                return
            if self._unlogged:
                db.flush()
                self._unlogged = False
            db.write(batch)
        except Exception as exc:
            raise self._broken(exc) from exc

    @property
    def flushing(self) -> bool:
        """Whether the next logged write would wait for the disk."""
        return self._unlogged and bool(self.db.property_int_value("rocksdb.num-immutable-mem-table"))

    def close(self) -> None:
        """Close it, and delete it if it failed, also if closing fails. Never raises; may be called twice."""
        if self._db is not None:
            self._release()
            if self.failed:
                shutil.rmtree(self.path, ignore_errors=True)

    def drop(self) -> None:
        """Close and delete it. Never raises."""
        self._release()
        shutil.rmtree(self.path, ignore_errors=True)

    def _release(self) -> None:
        """Close the database; the folder's lock goes with the last reference, even if closing fails."""
        db, self._db = self._db, None
        try:
            if db is not None:
                db.close()
        except Exception as exc:  # noqa: BLE001 - the library has no type for what a disk may do
            self._broken(exc)
            logger.warning("Store %s did not close%s: %s", self.path, ", it is dropped" if self.failed else "", exc)

    @property
    def _opening(self) -> Path:
        """A file that is there while the store is being opened."""
        return self.path.with_name(f"{self.path.name}.opening")

    def _forget(self, why: str) -> None:
        logger.warning("Local store %s dropped and rebuilt: %s", self.path, why)
        self.drop()
        self.failed = False

    def _open(self) -> Rdict:
        """Open the folder.

        RocksDB never comes back from some damage, as one bit in the type of a record of its manifest, and the whole
        process stands still meanwhile. So it is ended after `OPEN_S`, and whoever opens the store next drops it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._opening.touch()
        faulthandler.dump_traceback_later(OPEN_S, exit=True, file=_STDERR)
        try:
            return Rdict(str(self.path), options=_options())
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._opening.unlink(missing_ok=True)

    def _broken(self, exc: Exception) -> DiskFullError | StoreBrokenError:
        # for want of open files nothing is damaged: as after a crash, what is there is what the store says of itself
        self.failed = self.failed or not _lacks_files(exc)
        return _named(self.path, exc)

    def _read_meta(self, db: Rdict) -> StoreMeta | None:
        raw: Any = db.get(_META)
        if raw is None:
            return None
        try:
            return StoreMeta(**json.loads(raw))
        except (ValueError, TypeError):
            return None

    def _distrust(self, db: Rdict, meta: StoreMeta | None, now_ms: int, max_age_ms: int | None) -> str | None:
        if meta is None:
            return None if next(iter(db.keys()), None) is None else "it has no readable description of itself"
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


class RocksTable:
    """What the tables of a partition have in common: a store, and the offset up to which it reflects its topic."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int, max_age_ms: int | None = None) -> None:
        self._store = Store(path, identity, now_ms=now_ms, max_age_ms=max_age_ms)
        self._now_ms = now_ms

    @property
    def next_offset(self) -> int:
        return self._store.meta.next_offset

    def close(self) -> None:
        self._store.close()

    def drop(self) -> None:
        self._store.drop()


def _is_locked(exc: Exception) -> bool:
    return any(words in str(exc).lower() for words in (_HELD_HERE, "while lock file"))


def _is_full(exc: Exception) -> bool:
    return any(words in str(exc).lower() for words in ("no space left", "quota exceeded"))


def _lacks_files(exc: Exception) -> bool:
    return "too many open files" in str(exc).lower()


def _named(path: Path, exc: Exception) -> DiskFullError | StoreBrokenError:
    if _is_full(exc):
        usage = shutil.disk_usage(path.parent) if path.parent.exists() else None
        return DiskFullError(str(path), str(exc), usage.free if usage else None)
    remedy = None  # a store that is in use must not be removed
    if _HELD_HERE in str(exc).lower():
        remedy = "This process has it open already; it is used as soon as it is closed"
    elif _is_locked(exc):
        remedy = f"Another process has it open and uses it: stop that one, or {OWN_DATADIR}"
    elif _lacks_files(exc):
        remedy = (
            "Nothing is wrong with it: raise the limit of open files (LimitNOFILE= of systemd, ulimit -n), then restart"
        )
    return StoreBrokenError(str(path), str(exc), remedy)

"""Passes records that the client library cannot decode, and reports their offsets.

The stock reader never gets past the first of them. Here, for the topics in `TOPICS`:

* a header name that is not UTF-8 is read leniently: its odd bytes become lone surrogates (PEP 383);
* a batch with a bad checksum, or one that cannot be parsed, becomes one damaged `Record` with its range of offsets: a
  checksum covers a batch, so healthy and damaged records in it cannot be distinguished;
* a damaged batch ends where the next sound one begins. Without one its header counts if two of its fields agree; else
  reading goes on one offset at a time, and the rest before the next batch is reported then;
* a missing codec is no damage: a `Stuck` says so, and the position stays. The same if no batch frame is found.

Other topics and consumers of the process have the lenient names and otherwise the stock behaviour. Two names in
aiokafka's fetcher are replaced for the whole process; the C reader still does all the work on good data.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import aiokafka.codec as codecs
import aiokafka.consumer.fetcher as fetcher
from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

from retryapp.core.errors import MissingCodecError
from retryapp.core.record import Damage, Record
from retryapp.ports import Stuck

TOPICS: Final[set[str]] = set()
"""Topics of which a reader that asks with `bare` or `as_records` takes `Record` and `Stuck`; `Runtime.serve` adds."""

_StockRecords: Any = fetcher.PartitionRecords
LIST_RECORDS = 200
_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16
_BATCH_HEADER_BYTES = 61
_BAD_CHECKSUM = "the checksum of the batch is wrong"
_open_ends: Final[dict[Any, int]] = {}
"""Offset up to which a damaged batch with an unsure end was reported, by partition, and by who reads: the reader of
single records reads uncommitted ones."""


def to_record(tp: Any, read: Any) -> Record:
    """Return what the C reader has read of a partition as the engine's record."""
    return Record(tp.topic, tp.partition, read.offset, read.timestamp, read.key, read.value, tuple(read.headers))


class _Slice(bytearray):
    def decode(self, *_args: Any, **_kwargs: Any) -> str:
        return bytes(self).decode("utf-8", "surrogateescape")


class _Buffer(bytearray):
    """Decodes slices leniently; the reader decodes nothing but header names."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Slice(found) if isinstance(index, slice) else found


def bare(raw: bytes) -> bytes:
    """Return bytes as they are; as `key_deserializer` it selects lists of the C reader's own records: much cheaper."""
    return raw


def as_records(raw: bytes) -> bytes:
    """Return bytes as they are; as `key_deserializer` it selects `Record`, for topics in `TOPICS`."""
    return raw


class _Records(list[Any]):
    """The records of a batch, as one record of the stock reader."""

    @property
    def offset(self) -> int:
        return int(self[-1].offset)


class _Listed:
    """A batch that gives its records at once."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)  # the marker of a transaction

    def __iter__(self) -> Iterator[_Records]:
        if records := _Records(self._batch):  # compaction may leave none
            yield records


class KeptRecords:
    """The stock reader of a fetched partition, which knows the position of its last batch in the bytes."""

    lists = False
    """Whether a batch gives its records as one list."""

    def __init__(self, raw: bytes) -> None:
        self._raw = memoryview(raw)
        self._at = self._end = 0
        records = MemoryRecords(raw)
        self._next_batch = records.next_batch
        self.has_next = records.has_next
        self.size_in_bytes = records.size_in_bytes

    def next_batch(self) -> Any:
        self._at = self._end
        batch = self._next_batch()
        self._end = _frame_end(self._raw, self._at)
        return _Listed(batch) if self.lists else batch

    @property
    def first(self) -> _Batch | None:
        """The first batch; None if its frame is broken or incomplete."""
        return _frame(self._raw)

    @property
    def last(self) -> _Batch | None:
        """The last batch, or None if its frame is broken."""
        return _frame(self._raw[self._at :]) if self._end > self._at else None


class TolerantRecords(_StockRecords):  # type: ignore[misc]  # the client has no types
    """The stock unpacking of a fetched partition, which passes what it cannot read."""

    next_fetch_offset: int
    _key_deserializer: Any
    _isolation_level: Any
    _records: Any
    _tp: Any

    @cached_property
    def _ours(self) -> bool:
        """Whether who reads takes damaged records: other consumers of the process have a topic as it is."""
        return self._key_deserializer in (bare, as_records) and self._tp.topic in TOPICS

    def _unpack_records(self) -> Iterator[Any]:
        return self._in_lists() if self._key_deserializer is bare else self._readable()

    def _in_lists(self) -> Iterator[list[Any]]:
        """Yield lists of `LIST_RECORDS` records, or up to a batch more; the last is shorter."""
        self._records.lists = True
        records: list[Any] = []
        for found in self._readable():
            if isinstance(found, list):
                records += found
            else:
                records.append(found)
            if len(records) >= LIST_RECORDS:
                yield records
                records = []
        if records:
            yield records

    def _readable(self) -> Iterator[Any]:
        ours = self._ours
        if ours:
            yield from self._rest_of_a_damaged_batch()
        while True:
            stock = super()._unpack_records()
            try:
                for record in stock:  # noqa: UP028 - an error of the caller must pass
                    yield record
            except UnsupportedCodecError as exc:
                if not ours:
                    raise
                yield self._stuck(str(exc))
                return
            except MemoryError:
                raise
            except Exception as exc:  # the C reader and the codecs raise what they like
                batch = self._records.last
                if not ours and (batch is None or not batch.sound):
                    raise
                if batch is None:
                    yield self._stuck(f"the frame of the batch is broken, where the next begins is unknown ({exc})")
                    return
                if batch.lies_before(self.next_fetch_offset):
                    if self._records.has_next():
                        continue
                    yield self._stuck(f"the fetch ends with a batch that lies before ({exc})")
                    return
                if not (yield from self._past(batch, exc)):
                    return
                continue
            return

    def _consumer_record(self, tp: Any, record: Any) -> Any:
        if self._key_deserializer is not bare:
            return to_record(tp, record) if self._ours else super()._consumer_record(tp, record)
        if isinstance(record, list) and record[0].offset < self.next_fetch_offset:  # the fetch begins within the batch
            return [each for each in record if each.offset >= self.next_fetch_offset]
        return record

    def _rest_of_a_damaged_batch(self) -> Iterator[Record]:
        """Report the offsets between a damaged batch with an unsure end and the batch that comes now."""
        first = self.next_fetch_offset
        if _open_ends.get((self._tp, self._isolation_level)) != first:
            return
        batch = self._records.first
        if batch is not None and batch.sound and batch.base > first:
            self.next_fetch_offset = batch.base
            yield self._unreadable(first, batch.base - 1, _BAD_CHECKSUM)

    def _past(self, batch: _Batch, error: Exception) -> Generator[Any, None, bool]:
        """Yield what can be read of a batch, and step over it.

        Returns:
            Whether to read on in this fetch: after a bad checksum the batch's transaction flags are unreliable, and a
            new fetch begins with the broker's own.
        """
        end, sure = batch.reach()
        if batch.sound:
            try:
                for record in batch.leniently():
                    if record.offset >= self.next_fetch_offset:
                        found = self._consumer_record(self._tp, record)
                        self.next_fetch_offset = record.offset + 1
                        yield found
            except Exception as exc:  # noqa: BLE001 - as above
                error = exc
            else:
                self.next_fetch_offset = end
                return True
        if not self._ours:
            raise error
        first = self.next_fetch_offset
        end = max(end, first + 1)
        self.next_fetch_offset = end
        if not sure:
            _open_ends[self._tp, self._isolation_level] = end
        yield self._unreadable(first, end - 1, f"{type(error).__name__}: {error}" if batch.sound else _BAD_CHECKSUM)
        return False

    def _stuck(self, problem: str) -> Stuck:
        return Stuck(self._tp.topic, self._tp.partition, self.next_fetch_offset, problem)

    def _unreadable(self, first: int, last: int, problem: str) -> Record:
        # empty, not null: copied, a null dead letter would be a tombstone
        return Record(self._tp.topic, self._tp.partition, first, -1, None, b"", (), Damage(last, problem))


@dataclass(frozen=True)
class _Batch:
    """One batch by its raw bytes."""

    raw: memoryview
    tail: memoryview
    base: int

    @property
    def is_current(self) -> bool:
        """Whether it has layout 2; older ones have no headers."""
        return self.raw[_MAGIC_AT] == 2

    @cached_property
    def sound(self) -> bool:
        return self.is_current and bool(self._header.validate_crc())

    @cached_property
    def _header(self) -> Any:
        return _DefaultRecordBatchPy(self.raw)

    def lies_before(self, offset: int) -> bool:
        """Return whether all of it was passed: the broker may take a damaged batch for longer."""
        if self.sound:
            return int(self._header.next_offset) <= offset
        following = self._following_base()
        return following is not None and following <= offset

    def reach(self) -> tuple[int, bool]:
        """Return the offset after its last record, and whether that is sure.

        A bad checksum covers the counts of offsets and of records. A sound batch after it is right; so is an incomplete
        one that agrees with a count. Else one step is sure.
        """
        if self.sound:
            return int(self._header.next_offset), True
        following = _frame(self.tail)
        if following is not None and following.sound and following.base > self.base:
            return following.base, True
        if not self.is_current:
            return self.base + 1, False
        end = int(self._header.next_offset)
        agreed = end - self.base == self._header._num_records
        base = self._following_base()
        if base is not None:
            agreed, end = agreed or end == base, min(end, base)
        return (end, True) if agreed and end > self.base else (self.base + 1, False)

    def _following_base(self) -> int | None:
        """Return the next batch's first offset by its header, even if it is incomplete or damaged."""
        if len(self.tail) <= _MAGIC_AT or self.tail[_MAGIC_AT] != 2:
            return None
        (base, _) = _LENGTH.unpack_from(self.tail)
        return int(base) if base > self.base else None

    def leniently(self) -> Iterator[Any]:
        batch = _DefaultRecordBatchPy(self.raw)
        batch._maybe_uncompress()
        batch._buffer = _Buffer(batch._buffer)
        return iter(batch)


def _frame_end(raw: memoryview, at: int) -> int:
    (_, length) = _LENGTH.unpack_from(raw, at)
    return at + _LENGTH.size + int(length)


def _frame(raw: memoryview) -> _Batch | None:
    """Return the batch at the beginning of these bytes, or None if there is no complete one."""
    if len(raw) < _BATCH_HEADER_BYTES:
        return None
    end = _frame_end(raw, 0)
    if not _BATCH_HEADER_BYTES <= end <= len(raw):
        return None
    (base, _) = _LENGTH.unpack_from(raw)
    return _Batch(raw[:end], raw[end:], int(base))


def refuse_missing_codecs() -> None:
    """Check that this process reads all codecs of producers.

    Raises:
        MissingCodecError: names the first missing one.
    """
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        if not getattr(codecs, f"has_{codec}")():
            raise MissingCodecError(codec)


def install() -> None:
    """Install both readers for every consumer of this process; may be called again."""
    fetcher.MemoryRecords = KeptRecords
    fetcher.PartitionRecords = TolerantRecords

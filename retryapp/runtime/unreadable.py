"""Records that the client library cannot decode: found by offset, told of, and passed.

The stock reader stops at the first of them for ever, and the good records before it in the same fetch are lost to it
too. Here, for the topics in `TOPICS`:

* a header name that is not UTF-8 is read leniently: its odd bytes become lone surrogates (PEP 383);
* a batch with a bad checksum, or one whose records cannot be taken apart, becomes one `Unreadable` in its place, which
  names the range of offsets: a checksum covers a batch, so its healthy records cannot be told from the damaged ones;
* a missing codec is no damage, or every record would be dead: an `Unreadable` that says so, and the position stays. So
  it does where not even the frame of a batch can be found.

Other topics of the process (the user's, our changelogs) have the lenient names and otherwise the stock behaviour: an
error for ever, for nobody there could take a range of offsets for what it is.

It replaces two names in aiokafka's fetcher, for the whole process; the C reader still does all the work on good data.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.codec as codecs
import aiokafka.consumer.fetcher as fetcher
from aiokafka.errors import UnsupportedCodecError
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import ConsumerRecord

from retryapp.core.errors import MissingCodecError

TOPICS: Final[set[str]] = set()
"""Topics whose readers know what an `Unreadable` is; `Runtime.serve` adds to them."""

_StockRecords: Any = fetcher.PartitionRecords
_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16
_BATCH_HEADER_BYTES = 61


@dataclass
class Unreadable(ConsumerRecord[bytes, bytes]):  # type: ignore[misc]  # the client has no types
    """Stands for offsets that could not be read; `offset` is the first of them."""

    last_offset: int = 0
    """Last offset of the range."""
    problem: str = ""
    """What is wrong, without payload."""
    stuck: bool = False
    """Nothing was passed: reading on would skip records that are, or may be, sound."""


class _Slice(bytearray):
    """Bytes whose text form never fails."""

    def decode(self, *_args: Any, **_kwargs: Any) -> str:
        return bytes(self).decode("utf-8", "surrogateescape")


class _Buffer(bytearray):
    """A buffer whose slices decode leniently; the reader decodes nothing but header names."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Slice(found) if isinstance(index, slice) else found


class KeptRecords:
    """The stock reader of a fetched partition, beside the bytes that it reads."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        records = MemoryRecords(raw)
        self.has_next = records.has_next
        self.next_batch = records.next_batch
        self.size_in_bytes = records.size_in_bytes


class TolerantRecords(_StockRecords):  # type: ignore[misc]  # the client has no types
    """The stock unpacking of a fetched partition, which passes what it cannot read. See the module's text."""

    next_fetch_offset: int
    _records: Any
    _tp: Any

    def _unpack_records(self) -> Iterator[Any]:
        while True:
            stock = super()._unpack_records()
            try:
                for record in stock:  # noqa: UP028 - an error must be told from those of whoever iterates
                    yield record
            except UnsupportedCodecError as exc:
                if self._tp.topic not in TOPICS:
                    raise
                yield self._stuck(str(exc))
                return
            except MemoryError:
                raise
            except Exception as exc:  # the C reader and the codecs raise what they like
                batch = self._batch_at(self.next_fetch_offset)
                if batch is None and self._tp.topic not in TOPICS:
                    raise
                if batch is None:
                    yield self._stuck(f"the frame of the batch is broken, where the next begins is unknown ({exc})")
                    return
                if not (yield from self._past(batch, exc)):
                    return
                self._records = KeptRecords(batch.tail)
                continue
            return

    def _past(self, batch: _Batch, error: Exception) -> Generator[Any, None, bool]:
        """Yield what can be had of a batch, and step over it.

        Returns:
            Whether the rest of the fetch can be read on: after a bad checksum the batch's word on transactions cannot
            be believed, and a new fetch begins with the broker's own.
        """
        sound = batch.checksum_holds()
        if sound and batch.is_current:
            try:
                for record in batch.leniently():
                    if record.offset >= self.next_fetch_offset:
                        found = self._consumer_record(self._tp, record)
                        self.next_fetch_offset = record.offset + 1
                        yield found
            except Exception as exc:  # noqa: BLE001 - as above
                error = exc
            else:
                self.next_fetch_offset = batch.end
                return True
        if self._tp.topic not in TOPICS:
            raise error
        first = self.next_fetch_offset
        end = max(batch.end, first + 1)
        self.next_fetch_offset = end
        problem = "the checksum of the batch is wrong" if not sound else f"{type(error).__name__}: {error}"
        yield self._unreadable(first, end - 1, problem)
        return False

    def _batch_at(self, offset: int) -> _Batch | None:
        """Return the first batch that reaches `offset`, from the raw bytes."""
        raw, at = self._records.raw, 0
        while at + _BATCH_HEADER_BYTES <= len(raw):
            base, length = _LENGTH.unpack_from(raw, at)
            end = at + _LENGTH.size + length
            if length < _BATCH_HEADER_BYTES - _LENGTH.size or end > len(raw):
                return None
            batch = _Batch(raw[at:end], raw[end:], base)
            if batch.end > offset:
                return batch
            at = end
        return None

    def _stuck(self, problem: str) -> Unreadable:
        return self._unreadable(self.next_fetch_offset, self.next_fetch_offset, problem, stuck=True)

    def _unreadable(self, first: int, last: int, problem: str, *, stuck: bool = False) -> Unreadable:
        return Unreadable(
            topic=self._tp.topic,
            partition=self._tp.partition,
            offset=first,
            timestamp=-1,
            timestamp_type=0,
            key=None,
            value=None,
            checksum=None,
            serialized_key_size=-1,
            serialized_value_size=-1,
            headers=(),
            last_offset=last,
            problem=problem,
            stuck=stuck,
        )


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch by its raw bytes."""

    raw: bytes
    tail: bytes
    """What follows it in the fetch."""
    base: int

    @property
    def is_current(self) -> bool:
        """Whether it has today's layout (2); older ones have no headers to be lenient with."""
        return self.raw[_MAGIC_AT] == 2

    @property
    def end(self) -> int:
        """Offset after its last record.

        The count of offsets is under the checksum, so it may be wrong; it is believed as far as the batch that follows
        does not begin before, and where none follows, when the count of records agrees. Else only one step is sure.
        """
        if not self.is_current:
            return self.base + 1
        header = _DefaultRecordBatchPy(self.raw)
        end = int(header.next_offset)
        if len(self.tail) >= _LENGTH.size:
            (following, _) = _LENGTH.unpack_from(self.tail, 0)
            return min(end, following) if end > self.base else int(following)
        return end if self.checksum_holds() or end - self.base == header._num_records else self.base + 1

    def checksum_holds(self) -> bool:
        """Tell whether the batch is as it was written."""
        return self.is_current and bool(_DefaultRecordBatchPy(self.raw).validate_crc())

    def leniently(self) -> Iterator[Any]:
        """Return its records; names of headers may have lone surrogates."""
        batch = _DefaultRecordBatchPy(self.raw)
        batch._maybe_uncompress()
        batch._buffer = _Buffer(batch._buffer)
        return iter(batch)


def refuse_missing_codecs() -> None:
    """Check that this process reads whatever producers may write.

    Raises:
        MissingCodecError: names the first that it does not.
    """
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        if not getattr(codecs, f"has_{codec}")():
            raise MissingCodecError(codec)


def install() -> None:
    """Let every consumer of this process read so; may be called again."""
    fetcher.MemoryRecords = KeptRecords
    fetcher.PartitionRecords = TolerantRecords

"""The index of dead letters: what lists show of each (`core.dead_index`), where it lies, and what became of it.

It is rebuilt by reading the dead-letter topic, in any order and more than once. Keys, big-endian::

    | 0x00 | offset u64 |                                 a letter
    | 0x01 | 'f' | hash 16 bytes |                        by failure id; value: the offset of its newest letter, u64
    | 0x01 | 't' | append_ms u64 | offset u64 |           by time
    | 0x01 | 'k' or 'c' | hash or cause | append_ms u64 | offset u64 |   by key, by cause, and time
    | 0x03 | offset u64 |                                 its mark: | length u8 | mark | job |

Lists are by time, which offsets are not where a broker's clock was set back. Marks lie apart from letters, so a letter
that is written again, or later than its mark, keeps it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from rocksdict import WriteBatch
from typing_extensions import override

from retryapp.core.causes import OTHER_CAUSE, CauseCount, cause_bytes, cause_name
from retryapp.core.control import is_open
from retryapp.core.dead_index import (
    IndexedLetter,
    counted_as,
    decode_letter,
    encode_letter,
    hash_of,
    index_letter,
)
from retryapp.core.errors import StoreBrokenError
from retryapp.ports import DeadLetterTable, DeadRow
from retryapp.runtime.stores.causes import OTHER, CauseTally
from retryapp.runtime.stores.store import RocksTable, StoreIdentity

_ROW = b"\x00"
_BY_FAILURE = b"\x01f"
_BY_TIME = b"\x01t"
_BY_KEY = b"\x01k"
_BY_CAUSE = b"\x01c"
_MARK = b"\x03"
_FAILURE_HASH_BYTES = 16
"""As long as no two failure ids ever have the same: rows are not compared."""
_OFFSET = struct.Struct(">Q")
_PLACE = struct.Struct(">QQ")
_LAST = b"\xff" * _PLACE.size
_ROW_COUNT = "rows"
FORGET_LIMIT = 500  # rows that one call removes at most


def _row_key(offset: int) -> bytes:
    return _ROW + _OFFSET.pack(offset)


def _offset_of(key: bytes) -> int:
    return int.from_bytes(key[-_OFFSET.size :], "big")


def _time_key(letter: IndexedLetter) -> bytes:
    return _BY_TIME + _PLACE.pack(max(0, letter.append_ms), letter.offset)


def _failure_key(failure_id: str) -> bytes:
    # one look-up, with a bloom filter, tells the newest letter: a walk over all of them took 28 us of 100,000
    return _BY_FAILURE + blake2b(failure_id.encode(), digest_size=_FAILURE_HASH_BYTES).digest()


def _indexes(letter: IndexedLetter) -> Iterator[bytes]:
    """Yield the keys under which a letter is found in lists."""
    by_time, cause = _time_key(letter), cause_bytes(letter.cause_id)
    at = by_time.removeprefix(_BY_TIME)
    yield by_time
    if letter.key is not None:
        yield _BY_KEY + letter.key_hash + at
    if cause is not None:
        yield _BY_CAUSE + cause + at
    if letter.other:
        yield _BY_CAUSE + OTHER + at


class RocksDeadLetterTable(RocksTable, DeadLetterTable):
    """A dead-letter table on RocksDB."""

    _first = _ROW
    """Rows below were removed: RocksDB would walk over each of them."""
    _oldest = _BY_TIME
    """The same of what is by time: the first key that is there, once rows were removed."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int) -> None:
        super().__init__(path, identity, now_ms=now_ms)
        try:
            self._causes = CauseTally(self._store)
        except StoreBrokenError:
            self.close()  # which deletes it: else each try would open it again
            raise

    @override
    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        batch = self._store.batch()
        new = {row.offset: row for row in rows if self._store.get(_row_key(row.offset)) is None}
        newest = dict[bytes, int]()
        for row in new.values():  # a letter never changes: one that is there stays as it is
            letter = index_letter(row.offset, row.headers, row.key, row.append_ms)
            if is_open(self.mark_of(row.offset)):
                letter = self._count(letter)
            self._first = min(self._first, _row_key(row.offset))
            batch.put(_row_key(row.offset), encode_letter(letter))
            for index in _indexes(letter):
                batch.put(index, b"")
            if letter.failure_id is not None:
                found = _failure_key(letter.failure_id)
                newest[found] = max(row.offset, newest.get(found, 0))
            self._oldest = min(self._oldest, _time_key(letter))
        for found, offset in newest.items():
            if offset > self._newest(found):
                batch.put(found, _OFFSET.pack(offset))
        self._commit(batch, next_offset)

    def _count(self, letter: IndexedLetter) -> IndexedLetter:
        """Count a letter; return it as it was counted."""
        bucket = self._causes.bucket_of(cause_bytes(letter.cause_id))
        at_ms = letter.append_ms if letter.last_failed_ms is None else letter.last_failed_ms
        self._causes.add(
            bucket,
            letter.cause or cause_name(letter.error_type or "", None, letter.message or ""),
            attempts=letter.attempt or 0,
            first_ms=at_ms,
            last_ms=at_ms,
            sample=letter.failure_id or "",
        )
        self._counted(1)
        return replace(letter, other=bucket == OTHER)

    def _uncount(self, raw: bytes) -> None:
        cause, attempts = counted_as(raw)
        self._causes.remove(cause or OTHER, attempts=attempts)
        self._counted(-1)

    def _counted(self, more: int) -> None:
        counts = self._store.meta.counts
        counts[_ROW_COUNT] = max(0, counts.get(_ROW_COUNT, 0) + more)

    @override
    def mark(self, marks: Mapping[int, tuple[str, str | None]], next_offset: int | None) -> None:
        batch = self._store.batch()
        for offset, (mark, job) in marks.items():
            was_open = is_open(self.mark_of(offset))
            if was_open != is_open(mark) and (raw := self._store.get(_row_key(offset))) is not None:
                if was_open:
                    self._uncount(raw)
                else:
                    letter = decode_letter(offset, raw)
                    for index in _indexes(letter):
                        batch.delete(index)
                    letter = self._count(letter)
                    for index in _indexes(letter):
                        batch.put(index, b"")
                    batch.put(_row_key(offset), encode_letter(letter))
            name = mark.encode()
            batch.put(_MARK + _OFFSET.pack(offset), bytes((len(name),)) + name + (job or "").encode())
        self._commit(batch, next_offset)

    def _commit(self, batch: WriteBatch, next_offset: int | None) -> None:
        self._causes.write(batch)
        if next_offset is not None:
            meta = self._store.meta
            meta.next_offset = max(meta.next_offset, next_offset)
        self._store.write(batch, self._now_ms)

    def page(self, before: int | None, limit: int) -> list[IndexedLetter]:
        """Return at most `limit` letters with an offset below `before`, the highest first."""
        found = self._backwards(_ROW, None if before is None else _OFFSET.pack(before))
        return [self._shown(_offset_of(key), raw) for key, raw in islice(found, limit)]

    def latest(
        self, before: tuple[int, int] | None, limit: int, *, cause: str | None = None, key: bytes | None = None
    ) -> list[IndexedLetter]:
        """Return at most `limit` letters below a time and an offset, newest first: all, of a cause id, or of a key.

        Of a cause *and* a key: those of the key are looked through, at most `limit` of them match.
        """
        if key is not None:
            prefix = _BY_KEY + hash_of(key)
        elif cause is not None:
            raw = OTHER if cause == OTHER_CAUSE else cause_bytes(cause)
            if raw is None:
                return []
            prefix = _BY_CAUSE + raw
        else:
            prefix = _BY_TIME
        out: list[IndexedLetter] = []
        for found, _ in self._backwards(prefix, None if before is None else _PLACE.pack(*before)):
            if len(out) >= limit:
                break
            if (raw_letter := self._store.get(_row_key(_offset_of(found)))) is not None:
                letter = self._shown(_offset_of(found), raw_letter)
                if cause in (None, letter.cause_id, OTHER_CAUSE if letter.other else None):
                    out.append(letter)
        return out

    def _backwards(self, prefix: bytes, before: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield what begins with a prefix, from the last below `before` on."""
        bound, least = prefix + (_LAST if before is None else before), self._oldest
        if prefix == _BY_TIME and bound <= least:
            return
        for key, value in self._store.items(bound, backwards=True):
            if not key.startswith(prefix):
                return
            if key != bound:
                yield key, value
            if key == least:
                return

    def _shown(self, offset: int, raw: bytes) -> IndexedLetter:
        return decode_letter(offset, raw, self._causes.name_of, *self._mark_of(offset))

    def _mark_of(self, offset: int) -> tuple[str | None, str | None]:
        """Return the mark of a letter, and the job that left it."""
        marked = self._store.get(_MARK + _OFFSET.pack(offset))
        if marked is None:
            return None, None
        end = marked[0] + 1
        return marked[1:end].decode(), marked[end:].decode() or None

    @override
    def find(self, failure_id: str) -> IndexedLetter | None:
        offset = self._newest(_failure_key(failure_id))
        raw = None if offset < 0 else self._store.get(_row_key(offset))
        return None if raw is None else self._shown(offset, raw)

    @override
    def newest(self, failure_id: str) -> tuple[int, str | None] | None:
        offset = self._newest(_failure_key(failure_id))
        return None if offset < 0 else (offset, self.mark_of(offset))

    @override
    def mark_of(self, offset: int) -> str | None:
        return self._mark_of(offset)[0]

    def _newest(self, key: bytes) -> int:
        """Return the offset of the newest letter of a failure id, by its key; -1: there is none."""
        found = self._store.get(key)
        return -1 if found is None else int.from_bytes(found, "big")

    def count(self) -> int:
        """Return how many letters are open: without a mark, or restored."""
        return self._store.meta.counts.get(_ROW_COUNT, 0)

    def causes(self) -> Sequence[CauseCount]:
        """Return how many open letters each cause has, the most first: ``MAX_CAUSES`` and one of the rest.

        ``OTHER_CAUSE`` are letters of further causes, and those whose headers name none.
        """
        return self._causes.counts()

    @override
    def forget_before(self, first_offset: int, limit: int = FORGET_LIMIT) -> int:
        bound = _row_key(first_offset)
        batch = self._store.batch()
        gone = 0
        last = b""
        times = set[bytes]()
        for key, value in self._store.items(self._first):
            if key >= bound or gone >= limit:
                break
            gone, last = gone + 1, key
            letter = decode_letter(_offset_of(key), value)
            if is_open(self.mark_of(letter.offset)):
                self._uncount(value)
            by_time, *indexes = _indexes(letter)
            times.add(by_time)
            if letter.failure_id is not None:
                found = _failure_key(letter.failure_id)
                indexes += [found] if self._newest(found) == letter.offset else []
            for index in indexes:
                batch.delete(index)
        if gone:
            left = next(key for key, _ in self._store.items(self._oldest) if key not in times)
            batch.delete_range(self._oldest, left)
            for by_time in times:
                if by_time > left:
                    batch.delete(by_time)
            batch.delete_range(self._first, last + b"\x00")
            batch.delete_range(_MARK, _MARK + last[1:] + b"\x00")
            self._causes.write(batch)
            self._first = last
            self._store.write(batch, self._now_ms)
            self._oldest = left
        return gone

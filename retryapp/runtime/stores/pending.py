"""The pending table: the waiting records of one handler and partition in RocksDB, sorted by due time.

The store's order is the order of delivery (`core.row_keys`), so due rows are the head of the table, and of each queue
that it has rows of: those of named circuits. A look goes through all queues together, by due time, and does not touch
one of which nothing may run. RocksDB walks over every deleted key before a live one, so two things keep it cheap:

* a cursor in memory for each queue: the only rows below it are the claimed ones that an earlier look passed. A look
  starts there, however many rows were removed since the slowest claim, and takes those that are claimed no more by
  their keys; an insert below it lowers it;
* a range delete below the first row per few thousand removed rows. (An iterator sorts all that are not flushed: one in
  each batch made a scan of ten rows take 2.3 ms instead of 0.1 ms.)

An index by identity finds one record; its values are::

    | due 8 bytes | counted as: cause 5 bytes, attempts u32 | tier | generation 1: 0xff |

so that a later row replaces the former one, and counts by tier, cause and generation follow every change, without
decoding the removed row. A row later in the main topic than all that the table knows needs no look-up.

Generations tell where a rebuild may begin. One begins at the end of the changelog: all rows are of the former one then.
When none of those is left, each row was written behind that end, which becomes the floor, and the next one begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, merge
from itertools import chain, islice
from pathlib import Path

from rocksdict import WriteBatch
from typing_extensions import override

from retryapp.core.causes import CAUSE_BYTES, CauseCount
from retryapp.core.failed import row_failed_of
from retryapp.core.row_keys import (
    IDENTITY_AT,
    IDENTITY_BYTES,
    OFFSET_AT,
    due_bound,
    due_order,
    in_queue,
    is_identity,
    parse_row_key,
    queue_in,
)
from retryapp.core.rows import COUNTED_BYTES, counted_in, failure_in, key_of_row, tier_of
from retryapp.ports import PendingTable, Row
from retryapp.runtime.stores.causes import CauseTally
from retryapp.runtime.stores.store import RocksTable, StoreIdentity

_INDEX = b"\x01"
_ROWS_END = b"\x01"
_TIER_AT = IDENTITY_AT + COUNTED_BYTES
_GENERATIONS = b"", b"\xff"
"""How index values end, with what no text has; those of older stores are of generation 0."""
_PURGE_ROWS = 5_000  # removed rows before the first live one after which a range delete covers them
_SHORT_TAIL = 2_000
"""Records that a recovery writes through the write-ahead log: a restart that missed little writes no file."""


def _start_of(queue: int) -> bytes:
    return queue.to_bytes(2, "big")


def _told(value: bytes) -> tuple[str, str]:
    """Return the name of a row's cause, and its failure id; nothing of a row that is damaged."""
    found = row_failed_of(value)
    return ("", "") if found is None else (found.name, found.sample)


class RocksPendingTable(RocksTable, PendingTable):
    """A pending table on RocksDB."""

    def __init__(self, path: Path, identity: StoreIdentity, *, now_ms: int, max_age_ms: int | None) -> None:
        super().__init__(path, identity, now_ms=now_ms, max_age_ms=max_age_ms)
        self._passed: set[bytes] = set()
        """The rows below the cursors: an earlier look found them claimed. It may have others."""
        self._aside: set[bytes] = set()
        """Rows that were put aside, below the cursors and above them; none of the former is among those."""
        self._removed = self._recovering = 0

    @property
    @override
    def last_written(self) -> int | None:
        return self._store.meta.written  # not compacted yet: an older store is dropped (`max_age_ms`)

    @property
    @override
    def floor(self) -> int:
        return self._store.meta.floor

    @override
    def due(
        self,
        now_ms: int,
        limit: int,
        claimed: Collection[bytes] = (),
        *,
        max_bytes: int | None = None,
        most: Mapping[int, int] = {},
        aside: bool = True,
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        bound = due_order(due_bound(now_ms + 1))
        found: list[tuple[bytes, bytes]] = []
        next_due: int | None = None
        size = 0
        for key, value in self._rows(claimed=claimed, most=most, aside=aside):
            size += len(value)
            too_much = bool(found) and max_bytes is not None and size > max_bytes
            if due_order(key) >= bound or len(found) >= limit or too_much:
                next_due = parse_row_key(key).due_at_ms
                break
            found.append((key, value))
        return found, next_due

    @override
    def put_aside(self, key: bytes) -> None:
        self._aside.add(key)  # first: pages, which are read in threads, find it in one of both
        self._passed.discard(key)

    @override
    def take_up(self, key: bytes) -> None:
        if key in self._aside:
            self._passed.add(key)
            self._aside.discard(key)

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    @override
    def find(self, identity: bytes) -> bytes | None:
        look_up = self._store.get(_INDEX + identity)
        return None if look_up is None else look_up[:IDENTITY_AT] + identity

    @override
    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        out: list[tuple[bytes, bytes]] = []
        for key, value in self._rows(after or b"", follow=False):
            if after is not None and due_order(key) <= due_order(after):
                continue
            if len(out) >= limit:
                break
            out.append((key, value))
        return out

    @override
    def counts(self) -> Mapping[str, int]:
        return dict(self._store.meta.counts)

    @property
    @override
    def newest(self) -> int:
        return self._store.meta.newest

    @override
    def causes(self) -> Sequence[CauseCount]:
        return self._causes.counts()

    @cached_property
    def _causes(self) -> CauseTally:
        """As the cursors; pages ask in threads, but not before `recovered`."""
        return CauseTally(self._store)

    @override
    def write(self, rows: Sequence[Row], changelog_offset: int | None) -> None:
        latest = {row.identity: row for row in rows}
        puts = [row for row in latest.values() if row.value is not None]
        batch = self._changes(latest, *zip(*puts, strict=True)) if puts else self._changes(latest)
        self._removed += len(rows)
        if self._removed >= _PURGE_ROWS:
            for queue, cursor in self._cursors.items():
                first = min((cursor, *(key for key in self._passed | self._aside if queue_in(key) == queue)))
                if first > _start_of(queue):
                    batch.delete_range(_start_of(queue), first)
            self._removed = 0
        if changelog_offset is not None:
            self._store.meta.written = changelog_offset
        self._commit(batch, None if changelog_offset is None else changelog_offset + 1, self._now_ms)

    @override
    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        # The table does not become younger before `recovered`: recoveries that never reach the end could keep it for
        # longer than the changelog keeps the tombstones that it lacks.
        latest = {identity: value for identity, value in records if is_identity(identity)}
        self._recovering += len(latest)
        puts = {identity: value for identity, value in latest.items() if value is not None}
        batch = self._changes(latest, puts, [*puts.values()], list(map(tier_of, puts.values())))
        self._store.meta.written = None  # the changelog has it: a recovery that is cut off is continued, not repeated
        logged = self._recovering <= _SHORT_TAIL
        self._commit(batch, next_offset, self._store.meta.used_ms, logged=logged)

    def _changes(
        self,
        changed: Collection[bytes],
        identities: Collection[bytes] = (),
        values: Sequence[bytes] = (),
        tiers: Collection[str] = (),
    ) -> WriteBatch:
        """Return a batch that removes the rows of `changed` and puts those of `identities`; the counts follow."""
        meta, batch = self._store.meta, self._store.batch()
        counts = Counter(meta.counts)
        newest = b"" if meta.newest < 0 else meta.newest.to_bytes(IDENTITY_BYTES - OFFSET_AT, "big")
        counted, gone = self._count(values), Counter[bytes]()
        for identity in [identity for identity in changed if identity[OFFSET_AT:] <= newest]:
            if (look_up := self._store.get(_INDEX + identity)) is not None:
                former = look_up[:IDENTITY_AT] + identity
                batch.delete(former)
                batch.delete(_INDEX + identity)
                waited_in, generation, _ = look_up[_TIER_AT:].partition(_GENERATIONS[1])
                meta.old -= generation != _GENERATIONS[meta.generation]
                counts[waited_in.decode()] -= 1
                gone[look_up[IDENTITY_AT:_TIER_AT]] += 1
                self._passed.discard(former)
                self._aside.discard(former)
        if identities:
            keys = list(map(key_of_row, values, identities))
            for key, value in zip(keys, values, strict=True):
                batch.put(key, value)
            # apart from the rows: a quarter less work for RocksDB
            generation = _GENERATIONS[meta.generation]
            for identity, key, cause, tier in zip(identities, keys, counted, tiers, strict=True):
                batch.put(_INDEX + identity, key[:IDENTITY_AT] + cause + tier.encode() + generation)
            counts.update(tiers)
            for key in keys if queue_in(max(keys)) else (min(keys),):
                self._cursors[queue_in(key)] = min(self._cursors.get(queue_in(key), key), key)
            newest = max(newest, max([identity[OFFSET_AT:] for identity in identities]))
            meta.newest = int.from_bytes(newest, "big")
        meta.counts = {tier: count for tier, count in counts.items() if count}
        for each, records in gone.items():
            attempts = int.from_bytes(each[CAUSE_BYTES:])
            self._causes.remove(each[:CAUSE_BYTES], attempts=records * attempts, records=records)
        self._causes.write(batch)
        return batch

    def _count(self, values: Sequence[bytes]) -> Sequence[bytes]:
        """Count new rows by cause, those that count alike together; return as what each was counted."""
        counted, others = counted_in(values), dict[bytes, bytes]()
        # as they came, without a look at each: they have failed one after the other
        lasts = dict(zip(counted, values, strict=True))
        firsts = dict(zip(reversed(counted), reversed(values), strict=True))
        for each, records in Counter(counted).items():
            first, last = failure_in(firsts[each]), failure_in(lasts[each])
            if first is None or last is None:
                continue
            cause, attempts, _ = first
            first_ms, last_ms = sorted((first[-1], last[-1]))  # one that is only moved has failed long before
            bucket, name, sample = self._causes.bucket_of(cause), "", ""
            if bucket != cause:
                others[each] = bucket + each[CAUSE_BYTES:]
            elif not self._causes.name_of(bucket):
                name, sample = _told(firsts[each])
            self._causes.add(
                bucket, name, attempts=records * attempts, first_ms=first_ms, last_ms=last_ms, sample=sample,
                records=records,
            )  # fmt: skip
        return [others.get(each, each) for each in counted] if others else counted

    @override
    def recovered(self) -> None:
        self._store.meta.written = None
        logged, self._recovering = self._recovering <= _SHORT_TAIL, 0
        batch = self._store.batch()
        self._causes.write(batch)
        self._store.write(batch, self._now_ms, logged=logged, last=True)
        _ = self._cursors  # before pages ask in threads: from Python 3.12 on, each may find its own, and all but one go

    @property
    @override
    def flushing(self) -> bool:
        return self._store.flushing

    @override
    def touch(self, now_ms: int) -> None:
        self._now_ms = now_ms

    @cached_property
    def _cursors(self) -> dict[int, bytes]:
        """By queue; one that has none has no rows. Found at the first use: who opens a store cannot drop it yet."""
        found, start = {0: _start_of(0)}, _start_of(1)
        while (first := next(self._store.items(start), None)) is not None and first[0] < _ROWS_END:
            queue = queue_in(first[0])
            found[queue], start = _start_of(queue), _start_of(queue + 1)
        return found

    def _rows(
        self,
        start: bytes = b"",
        claimed: Collection[bytes] = (),
        most: Mapping[int, int] = {},
        *,
        follow: bool = True,
        aside: bool = True,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from `start` on that are not claimed, in due order, of a queue at most what `most` says.

        Those that were put aside only with `aside`.

        Pages are read in threads of their own, while rows are written: there the cursors must not `follow`, or they
        pass over what has come since the scan began, and it is never due.
        """
        rows = [
            islice(self._queue(queue, start, claimed, follow=follow, aside=aside), most.get(queue))
            for queue in [*self._cursors]
            if most.get(queue) != 0
        ]
        return rows[0] if len(rows) == 1 else merge(*rows, key=lambda row: due_order(row[0]))

    def _queue(
        self, queue: int, start: bytes, claimed: Collection[bytes], *, follow: bool, aside: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a queue in key order; the cursor may follow."""
        begin, end, cursor = _start_of(queue), _start_of(queue + 1), self._cursors[queue]
        start = in_queue(start, queue) if start else begin
        passed = (self._passed | self._aside if aside else self._passed).difference(claimed)
        below = [key for key in passed if start <= key < cursor]
        heapify(below)  # not sorted: there may be many, and most looks want the first few
        while below:
            key = heappop(below)
            value = self._store.get(key)
            if value is not None:
                yield key, value
        passing = follow and start <= cursor
        for key, value in self._store.items(max(start, cursor)):
            if key >= end:
                break
            if not aside and key in self._aside:
                continue
            if key in claimed:
                if passing and key not in self._aside:
                    self._passed.add(key)
                continue
            if passing:
                self._cursors[queue], passing = key, False
            yield key, value
        if passing:
            self._cursors[queue] = end

    def _commit(self, batch: WriteBatch, next_offset: int | None, used_ms: int, *, logged: bool = True) -> None:
        meta = self._store.meta
        if next_offset is not None:
            meta.next_offset = max(meta.next_offset, next_offset)
        if not meta.old:
            meta.floor, meta.next_floor = meta.next_floor, meta.next_offset
            meta.old, meta.generation = sum(meta.counts.values()), 1 - meta.generation
        self._store.write(batch, used_ms, logged=logged)

    @override
    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        found: list[int] = []
        for queue, cursor in [*self._cursors.items()]:
            start, end = (in_queue(due_bound(at_ms), queue) for at_ms in (start_ms, stop_ms))
            below = sorted(self._passed | self._aside)
            passed = [key for key in below if start <= key < min(cursor, end) and self._store.get(key)]
            keys = chain(passed, self._store.keys(max(start, cursor), end))
            found += [int.from_bytes(key[2:8], "big") for key in islice(keys, limit)]  # as `parse_row_key` reads it
        return sorted(found)[:limit]

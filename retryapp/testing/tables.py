"""The local stores in memory: the same contracts as those on RocksDB.

A store is a list of batches on a `Disk`; opening it applies them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from typing_extensions import override

from retryapp.core.causes import CauseCount, cause_text, summed
from retryapp.core.dead_index import IndexedLetter, index_letter
from retryapp.core.deduplicate import Seen, live_rows
from retryapp.core.failed import row_failed_of
from retryapp.core.row_keys import IDENTITY_AT, due_order, is_identity, parse_row_key, queue_in
from retryapp.core.rows import failure_in, key_of_row, tier_of
from retryapp.ports import DeadLetterTable, DeadRow, PendingTable, Row, SeenTable


class Disk:
    """The stores of one machine: the batches of each, by its name."""

    def __init__(self) -> None:
        self.stores: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)

    def write(self, store: str, batch: tuple[Any, ...]) -> None:
        self.stores[store].append(batch)

    def sync(self, store: str) -> None:
        """Make a store's batches durable."""

    def drop(self, store: str) -> None:
        self.stores.pop(store, None)


class _Stored:
    next_offset = 0
    rows: dict[Any, Any]

    def __init__(self, disk: Disk | None = None, name: str = "") -> None:
        self.rows = {}
        self._disk, self._name = disk or Disk(), name
        for batch in self._disk.stores[name]:
            self._apply(*batch)

    def _keep(self, *batch: Any) -> None:
        self._disk.write(self._name, batch)
        self._apply(*batch)

    def _apply(self, *batch: Any) -> None:
        raise NotImplementedError

    def _reach(self, next_offset: int | None) -> None:
        self.next_offset = max(self.next_offset, next_offset or 0)

    def close(self) -> None:
        self._disk.sync(self._name)

    def drop(self) -> None:
        self._disk.drop(self._name)


class MemoryPendingTable(_Stored, PendingTable):
    """`ports.PendingTable` in memory."""

    rows: dict[bytes, Row]
    floor = 0
    _next_floor = 0
    """The next one, once the rows from before it are gone or written anew."""
    _old: Set[bytes] = frozenset()
    """Identities of those."""
    _last_written: int | None = None

    def __init__(self, disk: Disk | None = None, name: str = "") -> None:
        self._aside: set[bytes] = set()
        super().__init__(disk, name)

    @property
    @override
    def last_written(self) -> int | None:
        return self._last_written

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
        due, size, of = list[tuple[bytes, bytes]](), 0, Counter[int]()
        for key in sorted(self.rows if aside else self.rows.keys() - self._aside, key=due_order):
            if key in claimed or of[queue_in(key)] >= most.get(queue_in(key), len(self.rows)):
                continue
            value = self.rows[key].value or b""
            size += len(value)
            too_much = bool(due) and max_bytes is not None and size > max_bytes
            due_at_ms = parse_row_key(key).due_at_ms
            if due_at_ms > now_ms or len(due) >= limit or too_much:
                return due, due_at_ms
            due.append((key, value))
            of[queue_in(key)] += 1
        return due, None

    @override
    def put_aside(self, key: bytes) -> None:
        self._aside.add(key)

    @override
    def take_up(self, key: bytes) -> None:
        self._aside.discard(key)

    @override
    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        times = (parse_row_key(key).due_at_ms for key in sorted(self.rows, key=due_order))
        return [time for time in times if start_ms <= time < stop_ms][:limit]

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.rows[key].value if key in self.rows else None

    @override
    def find(self, identity: bytes) -> bytes | None:
        return next((key for key in self.rows if key[IDENTITY_AT:] == identity), None)

    @property
    @override
    def newest(self) -> int:
        return max((parse_row_key(key).origin_offset for key in self.rows), default=-1)

    @override
    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        keys = sorted((key for key in self.rows if after is None or due_order(key) > due_order(after)), key=due_order)
        return [(key, self.rows[key].value or b"") for key in keys[:limit]]

    @override
    def counts(self) -> Mapping[str, int]:
        return Counter(row.tier for row in self.rows.values())

    @override
    def causes(self) -> Sequence[CauseCount]:
        failed = [(failure_in(row.value), row.value) for row in self.rows.values() if row.value is not None]
        return summed(
            replace(count, cause_id=cause_text(failure[0]))
            for failure, value in failed
            if failure is not None and (count := row_failed_of(value)) is not None
        )

    @override
    def write(self, rows: Sequence[Row], changelog_offset: int | None) -> None:
        self._keep([*rows], None if changelog_offset is None else changelog_offset + 1, changelog_offset)

    @override
    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        rows = [Row(key, value, tier_of(value or b"")) for key, value in records if is_identity(key)]
        self._keep(rows, next_offset, None)

    @override
    def recovered(self) -> None:
        self._keep((), None, None)

    @property
    @override
    def flushing(self) -> bool:
        return False

    @override
    def touch(self, now_ms: int) -> None:
        pass

    def _apply(self, rows: Sequence[Row], next_offset: int | None, last_written: int | None) -> None:
        for row in rows:
            if (former := self.find(row.identity)) is not None:
                del self.rows[former]
                self._aside.discard(former)
            if row.value is not None:
                self.rows[key_of_row(row.value, row.identity)] = row
        self._reach(next_offset)
        self._last_written = last_written
        self._old -= {row.identity for row in rows}
        if not self._old:
            self.floor, self._next_floor = self._next_floor, self.next_offset
            self._old = {row.identity for row in self.rows.values()}


class MemorySeenTable(_Stored, SeenTable):
    """`ports.SeenTable` in memory."""

    rows: dict[bytes, Seen]

    @override
    def find(self, identity: bytes) -> Seen | None:
        return self.rows.get(identity)

    @override
    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        self._keep(rows, next_offset, now_ms)

    @override
    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        self.write(live_rows(records, now_ms), next_offset, now_ms)

    def _apply(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        self.rows = {identity: row for identity, row in self.rows.items() if row.expires_ms > now_ms}
        self.rows.update((row.identity, row) for row in rows)
        self._reach(next_offset)


class MemoryDeadLetterTable(DeadLetterTable):
    """`ports.DeadLetterTable` in memory; each opening reads its topic from the beginning."""

    next_offset = 0

    def __init__(self) -> None:
        self.rows: dict[int, IndexedLetter] = {}
        self._marks: dict[int, tuple[str, str | None]] = {}

    @override
    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        self.rows.update((row.offset, index_letter(row.offset, row.headers, row.key, row.append_ms)) for row in rows)
        self.next_offset = max(self.next_offset, next_offset or 0)

    @override
    def mark(self, marks: Mapping[int, tuple[str, str | None]], next_offset: int | None) -> None:
        self._marks.update(marks)
        self.write((), next_offset)

    @override
    def close(self) -> None:
        pass

    @override
    def drop(self) -> None:
        pass

    @override
    def find(self, failure_id: str) -> IndexedLetter | None:
        offset = max((at for at, letter in self.rows.items() if letter.failure_id == failure_id), default=None)
        if offset is None:
            return None
        mark, job = self._marks.get(offset, (None, None))
        return replace(self.rows[offset], mark=mark, job=job)

    @override
    def newest(self, failure_id: str) -> tuple[int, str | None] | None:
        found = self.find(failure_id)
        return None if found is None else (found.offset, found.mark)

    @override
    def mark_of(self, offset: int) -> str | None:
        return self._marks.get(offset, (None, None))[0]

    @override
    def forget_before(self, first_offset: int) -> int:
        gone = [offset for offset in self.rows if offset < first_offset]
        for offset in gone:
            del self.rows[offset]
            self._marks.pop(offset, None)
        return len(gone)

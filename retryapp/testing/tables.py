"""The tables in memory: the same contracts as those on RocksDB, nothing on disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from retryapp.core.deduplicate import Seen, live_rows
from retryapp.core.headers import failure_id_of
from retryapp.core.rows import due_bound, parse_row_key
from retryapp.ports import DeadRow, Removal, Row


class MemoryPendingTable:
    """`ports.PendingTable` in memory."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rows: dict[bytes, Row] = {}
        self._keys: list[bytes] = []
        self._index: dict[int, bytes] = {}
        self.next_offset = 0
        """The table reflects the changelog up to here, exclusive."""

    def reopened(self) -> MemoryPendingTable:
        """Return the table as the next one to open it finds it: with the same rows, which this one must leave alone."""
        table = MemoryPendingTable()
        table._rows, table._keys, table._index = self._rows, self._keys, self._index
        table.next_offset = self.next_offset
        return table

    def due(
        self, now_ms: int, limit: int, claimed: Collection[bytes] = (), *, max_bytes: int | None = None
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        """See `ports.PendingTable.due`."""
        bound = due_bound(now_ms + 1)
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key in self._keys:
            if key in claimed:
                continue
            size += len(self._rows[key].value)
            too_much = bool(found) and max_bytes is not None and size > max_bytes
            if key >= bound or len(found) >= limit or too_much:
                return found, parse_row_key(key).due_at_ms
            found.append((key, self._rows[key].value))
        return found, None

    def get(self, key: bytes) -> bytes | None:
        """See `ports.PendingTable.get`."""
        row = self._rows.get(key)
        return None if row is None else row.value

    def find(self, origin_offset: int) -> bytes | None:
        """See `ports.PendingTable.find`."""
        return self._index.get(origin_offset)

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """See `ports.PendingTable.page`."""
        start = 0 if after is None else bisect_right(self._keys, after)
        return [(key, self._rows[key].value) for key in self._keys[start : start + limit]]

    def write(self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None) -> None:
        """See `ports.PendingTable.write`."""
        for row in puts:
            if row.key not in self._rows:
                insort(self._keys, row.key)
            self._rows[row.key] = row
            self._index[parse_row_key(row.key).origin_offset] = row.key
        for removal in removes:
            if self._rows.pop(removal.key, None) is None:
                continue
            del self._keys[bisect_left(self._keys, removal.key)]
            origin_offset = parse_row_key(removal.key).origin_offset
            if self._index.get(origin_offset) == removal.key:
                del self._index[origin_offset]
        if changelog_offset is not None:
            self.next_offset = max(self.next_offset, changelog_offset + 1)

    def counts(self) -> Mapping[str, int]:
        """See `ports.PendingTable.counts`."""
        return Counter(row.tier for row in self._rows.values())


class MemorySeenTable:
    """`ports.SeenTable` in memory."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rows: dict[bytes, Seen] = {}
        self.next_offset = 0
        """The table reflects the changelog up to here, exclusive."""

    def find(self, identity: bytes) -> Seen | None:
        """See `ports.SeenTable.find`."""
        return self._rows.get(identity)

    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        """See `ports.SeenTable.write`."""
        for identity in [row.identity for row in self._rows.values() if row.expires_ms <= now_ms]:
            del self._rows[identity]
        self._rows.update((row.identity, row) for row in rows)
        self.next_offset = max(self.next_offset, next_offset)

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        """See `ports.SeenStore.recover`."""
        self.write(live_rows(records, now_ms), next_offset, now_ms)


class MemoryDeadLetterTable:
    """`ports.DeadLetterTable` in memory."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rows: dict[int, DeadRow] = {}
        self._index: dict[str, int] = {}
        self.next_offset = 0
        """The table reflects the topic up to here, exclusive."""

    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        """See `ports.DeadLetterTable.write`."""
        for row in rows:
            self._rows[row.offset] = row
            failure_id = failure_id_of(row.headers)
            if failure_id is not None:
                self._index[failure_id] = max(row.offset, self._index.get(failure_id, -1))
        if next_offset is not None:
            self.next_offset = max(self.next_offset, next_offset)

    def page(self, before: int | None, limit: int) -> list[DeadRow]:
        """See `ports.DeadLetterTable.page`."""
        offsets = sorted((offset for offset in self._rows if before is None or offset < before), reverse=True)
        return [self._rows[offset] for offset in offsets[:limit]]

    def find(self, failure_id: str) -> DeadRow | None:
        """See `ports.DeadLetterTable.find`."""
        offset = self._index.get(failure_id)
        return None if offset is None else self._rows[offset]

    def count(self) -> int:
        """See `ports.DeadLetterTable.count`."""
        return len(self._rows)

    def forget_before(self, first_offset: int, limit: int = 500) -> int:
        """Remove rows below an offset, the oldest first, and return how many; call again until nothing is removed."""
        gone = sorted(offset for offset in self._rows if offset < first_offset)[:limit]
        for offset in gone:
            failure_id = failure_id_of(self._rows.pop(offset).headers)
            if failure_id is not None and self._index.get(failure_id) == offset:
                del self._index[failure_id]
        return len(gone)

"""What every pending table does: each against a dict, over any order of writes, scans, recoveries and restarts."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from samples import waiting

from retryapp.core.headers import encode_metadata
from retryapp.core.rows import PendingRow, encode_row, parse_row_key, row_key
from retryapp.ports import PendingTable, Removal, Row
from retryapp.runtime.stores import pending
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.testing import MemoryPendingTable
from retryapp.testing.tables import Disk

DUE_MS = st.integers(0, 15)
OFFSETS = st.integers(0, 6)
TIERS = st.sampled_from(["1m", "1h"])
PURGE_ROWS = pending._PURGE_ROWS


def make_row(due_at_ms: int, offset: int, tier: str, value: bytes) -> Row:
    """Return a row as the engine makes it."""
    row = PendingRow(b"k", value, encode_metadata(waiting(offset, due_at_ms=due_at_ms, tier=tier)), 1)
    return Row(row_key(due_at_ms, 0, offset), encode_row(row), tier)


ROWS = st.builds(make_row, DUE_MS, OFFSETS, TIERS, st.binary(max_size=3))
KEYS = st.builds(lambda due_at_ms, offset: row_key(due_at_ms, 0, offset), DUE_MS, OFFSETS)


class PendingTableAgainstDict(RuleBasedStateMachine):
    """Writes go to both; what can be asked of the table is asked of the dict."""

    written = Bundle("written")
    table: PendingTable

    @initialize(purge_rows=st.sampled_from([1, 2, PURGE_ROWS]), rows=st.lists(ROWS, min_size=3, max_size=8))
    def start(self, purge_rows: int, rows: list[Row]) -> None:
        """Begin with a few rows; removed ones are purged after so many."""
        pending._PURGE_ROWS = purge_rows
        self.folder, self.disk = Path(tempfile.mkdtemp()), Disk()
        self.model: dict[bytes, Row] = {}
        self.latest: dict[int, bytes] = {}
        self.changelog = 0
        self.open()
        self.write(rows, [])

    def open(self) -> None:
        """Open the table."""
        raise NotImplementedError

    def looked_up(self, offset: int) -> bytes | None:
        """Return the row that is found by an offset: the latest of its record, until that is removed."""
        return self.latest.get(offset)

    def expect(self, puts: list[Row], removes: list[bytes]) -> None:
        """Apply a batch to the dict: puts, then removals."""
        for row in puts:
            self.model.pop(row.key, None)
            self.model[row.key] = row
            self.latest[parse_row_key(row.key).origin_offset] = row.key
        for key in removes:
            self.model.pop(key, None)
            if self.latest.get(offset := parse_row_key(key).origin_offset) == key:
                del self.latest[offset]

    def write(self, puts: list[Row], removes: list[bytes]) -> None:
        """Write a batch to both."""
        tiers = {**self.model, **{row.key: row for row in puts}}
        removals = [Removal(key, tiers[key].tier if key in tiers else "1m") for key in removes]
        self.table.write(puts, removals, self.changelog)
        self.changelog += 1
        self.expect(puts, removes)

    @rule(target=written, row=ROWS)
    def put(self, row: Row) -> bytes:
        """One row, new or over an old one."""
        self.write([row], [])
        return row.key

    @rule(key=written)
    def remove(self, key: bytes) -> None:
        """A row that is or was there."""
        self.write([], [key])

    @rule(puts=st.lists(ROWS, max_size=4), removes=st.lists(KEYS, max_size=4))
    def batch(self, puts: list[Row], removes: list[bytes]) -> None:
        """Several of both at once, doubled and missing ones too."""
        self.write(puts, removes)

    @rule(
        now_ms=DUE_MS,
        limit=st.integers(0, 5),
        claim=st.randoms(use_true_random=False),
        room=st.none() | st.tuples(st.integers(0, 5), st.integers(-1, 0)),
    )
    def fire(self, now_ms: int, limit: int, claim: random.Random, room: tuple[int, int] | None) -> None:
        """Scan past claimed rows, and remove what was due, as a firing does."""
        claimed = {key for key in self.model if claim.random() < 0.3}
        free = sorted(key for key in self.model if key not in claimed)
        due = [key for key in free if parse_row_key(key).due_at_ms <= now_ms][:limit]
        max_bytes = None if room is None else sum(len(self.model[key].value) for key in due[: room[0]]) + room[1]
        while max_bytes is not None and len(due) > 1 and sum(len(self.model[key].value) for key in due) > max_bytes:
            due.pop()
        rest = free[len(due) :]
        found, next_due_ms = self.table.due(now_ms, limit, claimed, max_bytes=max_bytes)
        assert found == [(key, self.model[key].value) for key in due]
        assert next_due_ms == (parse_row_key(rest[0]).due_at_ms if rest else None)
        if claim.random() < 0.7:
            self.write([], due)

    @rule(after=st.none() | KEYS | written, limit=st.integers(0, 5))
    def page(self, after: bytes | None, limit: int) -> None:
        """Any page."""
        keys = sorted(key for key in self.model if after is None or key > after)[:limit]
        assert self.table.page(after, limit) == [(key, self.model[key].value) for key in keys]

    @rule(records=st.lists(st.tuples(KEYS, st.booleans(), TIERS), max_size=6))
    def recover(self, records: list[tuple[bytes, bool, str]]) -> None:
        """The tail of a changelog: rows and tombstones one after the other."""
        tail: list[tuple[bytes, bytes | None]] = []
        for key, there, tier in records:
            place = parse_row_key(key)
            row = make_row(place.due_at_ms, place.origin_offset, tier, b"r")
            tail.append((key, row.value if there else None))
            self.expect([row] if there else [], [] if there else [key])
        tail.insert(len(tail) // 2, (b"mark", b"a key that is no row's says something else"))
        self.changelog += len(tail)
        self.table.recover(tail, self.changelog)

    @rule()
    def restart(self) -> None:
        """Close and open again."""
        self.table.close()
        self.open()

    @invariant()
    def counts_and_look_up_hold(self) -> None:
        """At any time."""
        if not hasattr(self, "table"):
            return
        assert dict(self.table.counts()) == dict(Counter(row.tier for row in self.model.values()))
        assert [self.table.find(offset) for offset in range(7)] == [self.looked_up(offset) for offset in range(7)]
        assert all(self.table.get(key) == row.value for key, row in self.model.items())
        assert self.table.next_offset == self.changelog

    def teardown(self) -> None:
        """Leave no files."""
        pending._PURGE_ROWS = PURGE_ROWS
        if hasattr(self, "table"):
            assert self.table.page(None, 1_000) == [(key, self.model[key].value) for key in sorted(self.model)]
            self.table.close()
            shutil.rmtree(self.folder)


class Rocks(PendingTableAgainstDict):
    """The one on disk."""

    def open(self) -> None:
        """Open the table, which is usable."""
        self.table = RocksPendingTable(
            self.folder / "0", StoreIdentity(topic="c", topic_id="i", partition=0), now_ms=0, max_age_ms=None
        )
        assert self.table.dropped is None


class Memory(PendingTableAgainstDict):
    """The one of tests and of the simulation."""

    def open(self) -> None:
        """Read what was written."""
        self.table = MemoryPendingTable(self.disk, "0")

    def looked_up(self, offset: int) -> bytes | None:
        """Return the latest row of the record that is left."""
        return next((key for key in reversed(self.model) if parse_row_key(key).origin_offset == offset), None)


TestRocks = Rocks.TestCase
TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=100, stateful_step_count=30, phases=[Phase.generate])
# each step is a file system's work: shrinking would take minutes
TestRocks.settings = settings(TestMemory.settings, max_examples=40)

"""What every pending table does: each against a dict, over any order of writes, scans, recoveries and restarts."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from samples import key_of, removal, waiting_row

from retryapp.core.causes import summed
from retryapp.core.failed import row_failed_of
from retryapp.core.row_keys import IDENTITY_AT, parse_row_key, queue_in, queue_of
from retryapp.ports import PendingTable, Row
from retryapp.runtime.stores import pending
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.testing import MemoryPendingTable
from retryapp.testing.tables import Disk

DUE_MS = st.integers(0, 15)
TIERS = st.sampled_from(["1m", "1h"])
PURGE_ROWS = pending._PURGE_ROWS
MAINS = ["kq8G0bTz", "again"]
"""Ids of the main topic: one that was made again has other records at the same offsets."""
DAMAGED = b"no row"
CIRCUITS = ["ledger", "mail"]

CHANGES = st.builds(
    lambda offset, due_at_ms, tier, value, topic_id, circuit, failed, message, attempt: waiting_row(
        offset, due_at_ms=due_at_ms, tier=tier, value=value, topic_id=topic_id, circuit=circuit, failed=failed,
        error_message=message, attempt=attempt, delivery=3,
    ),
    st.integers(0, 3),
    DUE_MS,
    TIERS,
    st.binary(max_size=3),
    st.sampled_from(MAINS),
    st.sampled_from(["", "", *CIRCUITS]),
    st.sampled_from([True, True, False]),
    st.sampled_from(["no", "shard 1", "shard 2", "off"]),
    st.integers(0, 3),
)  # fmt: skip
REMOVALS = CHANGES.map(removal)
BROKEN = CHANGES.map(lambda row: Row(row.identity, DAMAGED, "?"))
ALL_CHANGES = CHANGES | REMOVALS | BROKEN
KEYS = CHANGES.map(key_of)
IDENTITIES = [waiting_row(offset, topic_id=main).identity for offset in range(4) for main in MAINS]


def after_(key: bytes, other: bytes) -> bool:
    """Tell whether a key comes after another in due order."""
    return parse_row_key(key) > parse_row_key(other)


class PendingTableAgainstDict(RuleBasedStateMachine):
    """Writes go to both; what can be asked of the table is asked of the dict: the last row of each record."""

    table: PendingTable

    @initialize(purge_rows=st.sampled_from([1, 2, PURGE_ROWS]), rows=st.lists(CHANGES, min_size=3, max_size=8))
    def start(self, purge_rows: int, rows: list[Row]) -> None:
        """Begin with a few rows; removed ones are purged after so many."""
        pending._PURGE_ROWS = purge_rows
        self.folder, self.disk = Path(tempfile.mkdtemp()), Disk()
        self.model: dict[bytes, Row] = {}
        self.written: dict[bytes, int] = {}
        """Offset of the last record of each row."""
        self.aside: set[bytes] = set()
        """Keys of rows that were put aside."""
        self.changelog = self.floor = 0
        self.open()
        self.write(rows)

    def open(self) -> None:
        raise NotImplementedError

    @property
    def rows(self) -> dict[bytes, bytes]:
        """The table's keys and values, in due order; a damaged row is due at once."""
        rows = ((key_of(row), row.value or b"") for row in self.model.values())
        return dict(sorted(rows, key=lambda row: parse_row_key(row[0])))

    def expect(self, rows: list[Row]) -> None:
        """Apply a batch to the dict, in its order."""
        for row in rows:
            if (former := self.model.pop(row.identity, None)) is not None:
                self.aside.discard(key_of(former))
            if row.value is not None:
                self.model[row.identity] = row

    @rule(rows=st.lists(ALL_CHANGES, min_size=1, max_size=6))
    def write(self, rows: list[Row]) -> None:
        """Put and remove a few rows at once: new, replaced, doubled and missing ones."""
        self.table.write(rows, self.changelog)
        self.written |= {row.identity: self.changelog for row in rows}
        self.changelog += 1
        self.expect(rows)

    @rule(
        now_ms=DUE_MS,
        limit=st.integers(0, 5),
        claim=st.randoms(use_true_random=False),
        room=st.none() | st.tuples(st.integers(0, 5), st.integers(-1, 0)),
        most=st.dictionaries(st.sampled_from(CIRCUITS), st.integers(0, 2)),
        aside=st.booleans(),
    )
    def deliver(
        self,
        now_ms: int,
        limit: int,
        claim: random.Random,
        room: tuple[int, int] | None,
        most: dict[str, int],
        aside: bool,
    ) -> None:
        """Scan past claimed rows; what was due is removed, put aside or waits again, some of it in its own millisecond.

        Of circuits that are not closed only some rows are there.
        """
        rows = self.rows
        claimed = {key for key in rows if claim.random() < 0.3}
        queues = {queue_of(name): number for name, number in most.items()}
        free = [key for key in rows if key not in claimed and (aside or key not in self.aside)]
        for queue, number in queues.items():
            mine = [key for key in free if queue_in(key) == queue]
            free = [key for key in free if key not in mine[number:]]
        due = [key for key in free if parse_row_key(key).due_at_ms <= now_ms][:limit]
        max_bytes = None if room is None else sum(len(rows[key]) for key in due[: room[0]]) + room[1]
        while max_bytes is not None and len(due) > 1 and sum(len(rows[key]) for key in due) > max_bytes:
            due.pop()
        rest = free[len(due) :]
        how: Any = {"max_bytes": max_bytes, "most": queues, "aside": aside}
        delivered, next_due_ms = self.table.due(now_ms, limit, claimed, **how)
        assert delivered == [(key, rows[key]) for key in due]
        assert next_due_ms == (parse_row_key(rest[0]).due_at_ms if rest else None)
        if claim.random() < 0.5:
            for key in due:
                self.table.put_aside(key)
                self.aside.add(key)
            return
        settled = [self.model[key[IDENTITY_AT:]] for key in due]
        self.write([row if claim.random() < 0.3 else removal(row) for row in settled])

    @rule(key=KEYS)
    def take_up(self, key: bytes) -> None:
        """Any row, or none: what was put aside is found again."""
        self.table.take_up(key)
        self.aside.discard(key)

    @rule(after=st.none() | KEYS, limit=st.integers(0, 5))
    def page(self, after: bytes | None, limit: int) -> None:
        rows = [(key, value) for key, value in self.rows.items() if after is None or after_(key, after)]
        assert self.table.page(after, limit) == rows[:limit]

    @rule(rows=st.lists(ALL_CHANGES, max_size=6))
    def recover(self, rows: list[Row]) -> None:
        """The tail of a changelog: rows and tombstones one after the other."""
        tail = [(row.identity, row.value) for row in rows]
        tail.insert(len(tail) // 2, (b"mark", b"a key that is no row's says something else"))
        self.expect(rows)
        self.written |= {identity: offset for offset, (identity, _) in enumerate(tail, self.changelog)}
        self.changelog += len(tail)
        self.table.recover(tail, self.changelog)

    @rule()
    def restart(self) -> None:
        self.table.close()
        self.open()
        self.aside.clear()

    @invariant()
    def counts_and_look_up_hold(self) -> None:
        if not hasattr(self, "table"):
            return
        rows = self.rows
        assert dict(self.table.counts()) == dict(Counter(row.tier for row in self.model.values()))
        failed = [each for value in rows.values() if (each := row_failed_of(value)) is not None]
        named = [
            [(each.cause_id, each.name, each.records, each.attempts) for each in found]
            for found in (summed(failed), self.table.causes())
        ]
        assert named[0] == named[1]
        keys = {identity: key_of(row) for identity, row in self.model.items()}
        assert [self.table.find(identity) for identity in IDENTITIES] == [keys.get(each) for each in IDENTITIES]
        assert all(self.table.get(key) == value for key, value in rows.items())
        assert self.table.next_offset == self.changelog

    @invariant()
    def all_rows_are_behind_the_floor(self) -> None:
        """It is the end of the changelog at some time, after which each row was written."""
        if hasattr(self, "table"):
            least = min((self.written[identity] for identity in self.model), default=self.changelog)
            assert self.floor <= self.table.floor <= least
            self.floor = self.table.floor

    def teardown(self) -> None:
        pending._PURGE_ROWS = PURGE_ROWS
        if hasattr(self, "table"):
            assert self.table.page(None, 1_000) == list(self.rows.items())
            self.table.close()
            shutil.rmtree(self.folder)


class Rocks(PendingTableAgainstDict):
    """The one on disk."""

    def open(self) -> None:
        """Open the table, which is usable."""
        self.table = RocksPendingTable(
            self.folder / "0", StoreIdentity(topic="c", topic_id="i", partition=0), now_ms=0, max_age_ms=None
        )
        assert self.table._store.dropped is None


class Memory(PendingTableAgainstDict):
    """The one of tests and of the simulation."""

    def open(self) -> None:
        self.table = MemoryPendingTable(self.disk, "0")


@pytest.mark.parametrize(("table", "examples"), [(Rocks, 40), (Memory, 100)])
def test_a_table_is_what_a_dict_is(table: type[PendingTableAgainstDict], examples: int) -> None:
    """Each step is a file system's work: shrinking would take minutes."""
    steps = settings(max_examples=examples, stateful_step_count=30, phases=[Phase.generate])
    run_state_machine_as_test(table, settings=steps)

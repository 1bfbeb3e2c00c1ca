"""What every pending table does; `ports.PendingTable` says it in words.

The one on disk is also run against a dict, in any order of calls (`tests/property/test_pending_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from retryapp.core.rows import parse_row_key
from retryapp.ports import PendingTable, Removal, Row
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.testing import MemoryPendingTable

MakeRow = Callable[..., Row]


@pytest.fixture(params=["memory", "rocks"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PendingTable]:
    """An empty table of each kind."""
    if request.param == "memory":
        yield MemoryPendingTable()
        return
    rocks = RocksPendingTable(
        tmp_path / "0", StoreIdentity(topic="c", topic_id="i", partition=0), now_ms=0, max_age_ms=None
    )
    yield rocks
    rocks.close()


def gone(row: Row) -> Removal:
    """Return the removal of a row."""
    return Removal(row.key, row.tier)


def due_and_offset(rows: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """Return due time and origin offset of rows."""
    return [(parse_row_key(key).due_at_ms, parse_row_key(key).origin_offset) for key, _ in rows]


def test_due_rows_come_by_due_time_and_then_by_origin_offset(table: PendingTable, make_row: MakeRow) -> None:
    """Not in the order in which they were written, and never a millisecond early."""
    table.write([make_row(300, 1), make_row(100, 9), make_row(100, 2), make_row(70_000, 0)], [], 0)
    rows, next_due = table.due(300, 10)
    assert due_and_offset(rows) == [(100, 2), (100, 9), (300, 1)]
    assert next_due == 70_000
    assert table.due(99, 10) == ([], 100)
    assert len(table.due(100, 10)[0]) == 2


def test_the_limit_bounds_what_is_returned_and_the_next_due_time_is_that_of_the_rest(
    table: PendingTable, make_row: MakeRow
) -> None:
    """What is due but beyond the limit is next."""
    table.write([make_row(100 + n, n) for n in range(5)], [], 0)
    rows, next_due = table.due(1_000, 3)
    assert (due_and_offset(rows), next_due) == ([(100, 0), (101, 1), (102, 2)], 103)
    assert table.due(1_000, 0) == ([], 100)
    assert table.due(1_000, 5)[1] is None


def test_what_is_returned_is_bounded_in_bytes_but_never_less_than_one_row(
    table: PendingTable, make_row: MakeRow
) -> None:
    """Large rows come a few at a time, one larger than the bound comes alone; the next due time is that of the rest."""
    rows = [make_row(100 + n, n, value=bytes(1_000)) for n in range(5)]
    size = len(rows[0].value)
    table.write(rows, [], 0)
    found, next_due = table.due(1_000, 10, max_bytes=2 * size)
    assert (due_and_offset(found), next_due) == ([(100, 0), (101, 1)], 102)
    assert len(table.due(1_000, 10, max_bytes=3 * size - 1)[0]) == 2
    assert table.due(1_000, 10, max_bytes=1) == ([(rows[0].key, rows[0].value)], 101)
    assert table.due(1_000, 0, max_bytes=1) == ([], 100)
    assert table.due(99, 10, max_bytes=1) == ([], 100)
    assert len(table.due(1_000, 10, max_bytes=5 * size)[0]) == 5


def test_claimed_rows_are_passed_over_and_are_not_next(table: PendingTable, make_row: MakeRow) -> None:
    """They are in a turn already: neither due nor a reason to wake up."""
    rows = [make_row(100, 1), make_row(100, 2), make_row(200, 3), make_row(300, 4)]
    table.write(rows, [], 0)
    found, next_due = table.due(150, 10, {rows[0].key, rows[2].key})
    assert (due_and_offset(found), next_due) == ([(100, 2)], 300)
    assert table.due(150, 1, {rows[0].key})[0] == [(rows[1].key, rows[1].value)]
    assert table.due(1_000, 10, {row.key for row in rows}) == ([], None)


def test_a_row_is_found_by_the_offset_of_its_first_delivery(table: PendingTable, make_row: MakeRow) -> None:
    """Until it is removed."""
    row, other = make_row(100, 7), make_row(100, 8)
    table.write([row, other], [], 0)
    assert (table.find(7), table.find(8), table.find(9)) == (row.key, other.key, None)
    table.write([], [gone(row)], 1)
    assert (table.find(7), table.find(8)) == (None, other.key)


def test_pages_go_through_all_rows_in_key_order(table: PendingTable, make_row: MakeRow) -> None:
    """The cursor is the last key of the page before; it need not exist any more."""
    rows = [make_row(100 * (n // 3), n) for n in range(10)]
    table.write(rows[::-1], [], 0)
    first = table.page(None, 4)
    assert first == [(row.key, row.value) for row in rows[:4]]
    table.write([], [gone(rows[3])], 1)
    assert table.page(first[-1][0], 4) == [(row.key, row.value) for row in rows[4:8]]
    assert table.page(rows[7].key, 4) == [(row.key, row.value) for row in rows[8:]]
    assert table.page(rows[9].key, 4) == []
    assert table.page(None, 0) == []


def test_rows_are_counted_by_tier(table: PendingTable, make_row: MakeRow) -> None:
    """Tiers without rows are not listed."""
    rows = [make_row(1, 1, "1m"), make_row(2, 2, "1h"), make_row(3, 3, "1h")]
    table.write(rows, [], 0)
    assert dict(table.counts()) == {"1m": 1, "1h": 2}
    table.write([], [gone(rows[0]), gone(rows[2])], 1)
    assert dict(table.counts()) == {"1h": 1}


def test_a_row_written_twice_is_one_row_with_the_later_value(table: PendingTable, make_row: MakeRow) -> None:
    """The same record parked again overwrites itself, in its own batch or in a later one."""
    table.write([make_row(1, 1, "1m", b"a"), make_row(1, 1, "1m", b"b")], [], 0)
    assert dict(table.counts()) == {"1m": 1}
    last = make_row(1, 1, "1h", b"c")
    table.write([last], [], 1)
    assert table.page(None, 10) == [(last.key, last.value)]
    assert dict(table.counts()) == {"1h": 1}


def test_a_record_that_gets_a_new_due_time_is_found_under_it(table: PendingTable, make_row: MakeRow) -> None:
    """Old row out, new row in, one batch: the look-up leads to the new one."""
    old, new = make_row(100, 7), make_row(900, 7)
    table.write([old], [], 0)
    table.write([new], [gone(old)], 1)
    assert table.find(7) == new.key
    assert due_and_offset(table.page(None, 10)) == [(900, 7)]


@pytest.mark.parametrize("purge_rows", [1, 2, 5_000])
def test_removals_never_take_a_row_that_came_in_late(
    table: PendingTable, make_row: MakeRow, purge_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheap removal of everything below the low mark spares rows of its own batch and of later ones."""
    monkeypatch.setattr("retryapp.runtime.stores.pending._PURGE_ROWS", purge_rows)
    rows = [make_row(1_000 + n, n) for n in range(10)]
    table.write(rows, [], 0)
    for batch in range(5):  # scan, remove the head, and put a row far below, in turns
        (head, _), *_ = table.due(5_000, 100)[0][-1:]
        late = make_row(10 + batch, 100 + batch)
        table.write([late], [Removal(head, "1m")], batch + 1)
        assert table.get(late.key) == late.value
    assert [offset for _, offset in due_and_offset(table.page(None, 100))] == [100, 101, 102, 103, 104, 0, 1, 2, 3, 4]
    assert sum(table.counts().values()) == 10


@pytest.mark.parametrize("purge_rows", [1, 5_000])
def test_a_table_that_was_emptied_takes_rows_again(
    table: PendingTable, make_row: MakeRow, purge_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the scan has proven to be empty."""
    monkeypatch.setattr("retryapp.runtime.stores.pending._PURGE_ROWS", purge_rows)
    for round_ in range(3):
        rows = [make_row(1_000 - 100 * round_ + n, n) for n in range(5)]
        table.write(rows, [], 2 * round_)
        assert len(table.due(5_000, 100)[0]) == 5
        table.write([], [gone(row) for row in rows], 2 * round_ + 1)
        assert table.due(5_000, 100) == ([], None)


def test_recovery_applies_the_changelog_in_order_and_passes_over_marks(table: PendingTable, make_row: MakeRow) -> None:
    """Rows, tombstones and rows again; keys that are no row keys say other things."""
    rows = [make_row(100 + n, n, "1h" if n % 2 else "1m") for n in range(6)]
    table.recover([(row.key, row.value) for row in rows[:4]], 4)
    table.recover([(rows[0].key, None), (b"mark", b"progress"), (rows[4].key, rows[4].value), (rows[1].key, None)], 9)
    table.recover([(rows[1].key, rows[1].value), (rows[5].key, None)], 11)
    assert [parse_row_key(key).origin_offset for key, _ in table.page(None, 10)] == [1, 2, 3, 4]
    assert dict(table.counts()) == {"1m": 2, "1h": 2}
    assert table.next_offset == 11
    assert (table.find(0), table.find(1)) == (None, rows[1].key)

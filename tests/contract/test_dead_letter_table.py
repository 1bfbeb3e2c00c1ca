"""What every dead-letter table does; `ports.DeadLetterTable` says it in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retryapp.core.record import Origin, failure_id
from retryapp.ports import DeadRow
from retryapp.runtime.stores.deadletters import RocksDeadLetterTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.testing import MemoryDeadLetterTable

MakeDead = Callable[..., DeadRow]
Table = MemoryDeadLetterTable | RocksDeadLetterTable
IDENTITY = StoreIdentity(topic="app.orders.dlq", topic_id="i", partition=0)


@pytest.fixture(params=["memory", "rocks"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """An empty table of each kind."""
    if request.param == "memory":
        yield MemoryDeadLetterTable()
        return
    rocks = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    yield rocks
    rocks.close()


def name(origin_offset: int) -> str:
    """Return the failure id of an origin offset."""
    return failure_id("app", Origin("orders", "kq8G0bTz", 0, origin_offset))


def test_pages_go_from_the_newest_to_the_oldest(table: Table, make_dead: MakeDead) -> None:
    """The cursor is the lowest offset of the page before; offsets have gaps."""
    rows = [make_dead(offset, offset) for offset in (3, 300, 7, 70_000, 65_536)]
    table.write(rows, 70_001)
    assert [row.offset for row in table.page(None, 2)] == [70_000, 65_536]
    assert [row.offset for row in table.page(65_536, 2)] == [300, 7]
    assert [row.offset for row in table.page(7, 2)] == [3]
    assert table.page(3, 2) == []
    assert table.page(None, 0) == []


def test_a_failure_id_leads_to_its_newest_dead_letter(table: Table, make_dead: MakeDead) -> None:
    """A record that was replayed and died again has two; the topic is read while new letters are written."""
    table.write([make_dead(9, 10), make_dead(5, 12)], None)
    table.write([make_dead(1, 10), make_dead(3, 10), make_dead(2, 11)], 4)
    table.write([make_dead(10, 12)], None)
    assert [table.find(name(n)) for n in (10, 11, 12)] == [make_dead(9, 10), make_dead(2, 11), make_dead(10, 12)]
    assert table.find(name(13)) is None
    assert (table.count(), table.next_offset) == (6, 4)


def test_rows_without_readable_metadata_are_listed_and_counted(table: Table, make_dead: MakeDead) -> None:
    """Damage hides nothing."""
    damaged = DeadRow(4, (("retry-version", b"1"), ("retry-attempt", b"x")))
    table.write([make_dead(3, None), damaged], 5)
    assert table.page(None, 5) == [damaged, make_dead(3, None)]
    assert table.count() == 2


def test_a_damaged_letter_is_found_by_what_can_be_read(table: Table, make_dead: MakeDead) -> None:
    """Group and origin say which failure it is; two of either say nothing."""
    whole = make_dead(4, 7).headers
    damaged = DeadRow(4, tuple((name, b"x" if name == "retry-attempt" else value) for name, value in whole))
    doubled = DeadRow(5, (*make_dead(5, 8).headers, ("retry-group", b"other")))
    nowhere = DeadRow(6, tuple((n, b"nowhere" if n == "retry-origin" else v) for n, v in make_dead(6, 9).headers))
    table.write([damaged, doubled, nowhere], 7)
    assert table.find(name(7)) == damaged
    assert (table.find(name(8)), table.find(name(9))) == (None, None)
    assert table.count() == 3


def test_rows_are_counted_once_however_often_they_are_written(table: Table, make_dead: MakeDead) -> None:
    """After an unknown commit the topic is read again over rows that are there."""
    table.write([make_dead(1, 1), make_dead(2, 2)], 3)
    table.write([make_dead(2, 2), make_dead(3, 3)], 4)
    assert table.count() == 3


def test_rows_before_an_offset_are_forgotten(table: Table, make_dead: MakeDead) -> None:
    """With the look-up of those that have no newer dead letter."""
    table.write([make_dead(1, 10), make_dead(2, 11), make_dead(5, 10), make_dead(6, None)], 7)
    assert table.forget_before(5) == 2
    assert [row.offset for row in table.page(None, 10)] == [6, 5]
    assert (table.count(), table.find(name(11)), table.find(name(10))) == (2, None, make_dead(5, 10))
    assert table.forget_before(5) == 0
    assert table.forget_before(100) == 2
    assert (table.count(), table.page(None, 10)) == (0, [])


def test_forgetting_is_bounded_and_goes_from_the_oldest_on(table: Table, make_dead: MakeDead) -> None:
    """A topic that lost a million letters must not hold the event loop; the caller asks again."""
    table.write([make_dead(offset, offset) for offset in range(10)], 10)
    assert table.forget_before(8, limit=3) == 3
    assert ([row.offset for row in table.page(None, 10)], table.count()) == ([9, 8, 7, 6, 5, 4, 3], 7)
    assert [table.find(name(offset)) is None for offset in (2, 3)] == [True, False]
    assert [table.forget_before(8, limit=3) for _ in range(3)] == [3, 2, 0]
    assert ([row.offset for row in table.page(None, 10)], table.count()) == ([9, 8], 2)


def test_a_letter_below_what_was_forgotten_is_kept_and_forgotten_again(table: Table, make_dead: MakeDead) -> None:
    """Nothing takes a row along that came in behind the place where forgetting stands."""
    table.write([make_dead(offset, offset) for offset in range(5, 8)], 8)
    assert table.forget_before(7) == 2
    table.write([make_dead(2, 2)], None)
    assert [row.offset for row in table.page(None, 10)] == [7, 2]
    assert (table.forget_before(7), table.count()) == (1, 1)


def test_reopening_keeps_rows_look_up_count_and_next_offset(tmp_path: Path, make_dead: MakeDead) -> None:
    """A restart reads only what is new on the topic."""
    table = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=0)
    table.write([make_dead(1, 10), make_dead(2, None)], 3)
    table.close()
    again = RocksDeadLetterTable(tmp_path / "0", IDENTITY, now_ms=10**13)
    assert (again.dropped, again.count(), again.next_offset) == (None, 2, 3)
    assert (again.find(name(10)), len(again.page(None, 9))) == (make_dead(1, 10), 2)
    again.close()

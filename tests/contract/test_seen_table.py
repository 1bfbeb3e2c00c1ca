"""The contract of every table of seen events, and what the one on disk has to do beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from retryapp.core.deduplicate import Seen, encode_seen
from retryapp.runtime.stores.seen import SWEEP_ROWS, RocksSeenTable
from retryapp.runtime.stores.store import StoreIdentity
from retryapp.testing.tables import MemorySeenTable

Table = MemorySeenTable | RocksSeenTable
Open = Callable[..., RocksSeenTable]
IDENTITY = StoreIdentity(topic="app.orders.seen.changelog", topic_id="i", partition=3)


def seen(event: int, offset: int, expires_ms: int) -> Seen:
    return Seen(event.to_bytes(16, "big"), offset, expires_ms)


def found(table: Table, event: int) -> int | None:
    row = table.find(event.to_bytes(16, "big"))
    return None if row is None else row.origin_offset


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open the table of this test's folder; each is closed at the end."""
    tables: list[RocksSeenTable] = []

    def open_(identity: StoreIdentity = IDENTITY) -> RocksSeenTable:
        tables.append(RocksSeenTable(tmp_path / "seen" / "3", identity, now_ms=0))
        return tables[-1]

    yield open_
    for table in tables:
        table.close()


@pytest.fixture(params=["memory", "rocksdb"])
def table(request: pytest.FixtureRequest, opened: Open) -> Table:
    """Return each implementation, empty."""
    return MemorySeenTable() if request.param == "memory" else opened()


def test_a_row_is_found_by_its_event(table: Table) -> None:
    """All that was written, nothing else; the table says how far it reflects its changelog."""
    assert table.find(bytes(16)) is None
    table.write([seen(1, 10, 500), seen(2, 11, 500)], 7, 100)
    assert table.find((1).to_bytes(16, "big")) == seen(1, 10, 500)
    assert (found(table, 2), found(table, 3), table.next_offset) == (11, None, 7)
    table.write([], 5, 100)
    assert table.next_offset == 7


def test_a_write_forgets_what_has_expired(table: Table) -> None:
    """At the very millisecond; what has not expired stays."""
    table.write([seen(1, 10, 500), seen(2, 11, 501), seen(3, 12, 900)], 3, 100)
    table.write([], 3, 500)
    assert [found(table, event) for event in (1, 2, 3)] == [None, 11, 12]


def test_a_row_that_took_the_place_of_an_older_one_is_not_forgotten_with_it(table: Table) -> None:
    """An event that is seen again after its window begins another; also when both happens in one write."""
    table.write([seen(1, 10, 500), seen(2, 11, 500)], 2, 100)
    table.write([seen(1, 20, 1_500)], 3, 400)
    table.write([seen(2, 21, 1_600)], 4, 600)
    assert (found(table, 1), found(table, 2)) == (20, 21)
    table.write([], 4, 1_500)
    assert (found(table, 1), found(table, 2)) == (None, 21)


def test_a_recovery_takes_the_last_row_of_an_event_and_none_that_has_expired(table: Table) -> None:
    """The changelog keeps somewhat more than the window."""
    rows = [seen(1, 10, 500), seen(2, 11, 90), seen(1, 30, 800)]
    table.recover([*((row.identity, encode_seen(row)) for row in rows), (b"mark", b"x")], 44, 100)
    assert (found(table, 1), found(table, 2), table.next_offset) == (30, None, 44)


def test_reopening_keeps_rows_and_their_expiry(opened: Open) -> None:
    """A restart reads only the tail of the changelog, and sweeps on."""
    first = opened()
    first.write([seen(1, 10, 500), seen(2, 11, 900)], 7, 100)
    first.close()
    again = opened()
    assert again._store.dropped is None
    assert (found(again, 1), again.next_offset) == (10, 7)
    again.write([], 7, 600)
    assert (found(again, 1), found(again, 2)) == (None, 11)


def test_a_sweep_is_bounded_and_loses_nothing(opened: Open) -> None:
    """A flood that expires at once is forgotten in slices, each of them short; then all of it is gone."""
    rows = 20 * SWEEP_ROWS
    table = opened()
    table.write([seen(event, event, 500) for event in range(rows)], rows, 100)
    longest_s, left = 0.0, [rows]
    for _ in range(40):
        began_s = time.thread_time()
        table.write([], rows, 1_000)
        longest_s = max(longest_s, time.thread_time() - began_s)
        left.append(sum(found(table, event) is not None for event in range(rows)))
        if not left[-1]:
            break
    slices = [before - after for before, after in pairwise(left)]
    assert left[-1] == 0
    assert set(slices) == {SWEEP_ROWS}
    assert longest_s < 0.1

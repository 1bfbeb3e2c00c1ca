"""Where a rebuild may begin, as the pending table on disk knows it over restarts, and as older builds left it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import removal, waiting_row

from retryapp.ports import Row
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import StoreIdentity

FIELDS = ("floor", "next_floor", "old", "generation")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "0"


@pytest.fixture
def table(folder: Path) -> Iterator[RocksPendingTable]:
    table = opened(folder)
    yield table
    table.close()


def opened(folder: Path) -> RocksPendingTable:
    identity = StoreIdentity(topic="c", topic_id="i", partition=0)
    table = RocksPendingTable(folder, identity, now_ms=0, max_age_ms=None)
    assert table._store.dropped is None
    return table


def reopened(table: RocksPendingTable) -> RocksPendingTable:
    table.close()
    return opened(table._store.path)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_floor_follows_the_oldest_row(table: RocksPendingTable, restarts: bool) -> None:
    """In two steps, and the same whether the store was opened anew between them; a row that is written anew is new."""

    def write(offset: int, *rows: Row) -> int:
        nonlocal table
        table = reopened(table) if restarts else table
        table.write(rows, offset)
        return table.floor

    floors = [
        write(9, waiting_row(1)),  # the first generation was empty, and the next one begins behind this: at 10
        write(19, waiting_row(2)),
        write(29, removal(waiting_row(2))),
        write(39, waiting_row(1, due_at_ms=7)),  # no row is left of what was before 10: the next one begins at 40
        write(49, waiting_row(3)),
        write(59, removal(waiting_row(1))),
        write(69, removal(waiting_row(3))),  # of those before 60, too
        write(79),
    ]
    assert floors == [0, 0, 0, 10, 10, 40, 60, 70]
    table.close()


def test_a_rebuild_that_begins_at_a_floor_and_is_cut_off_goes_on(table: RocksPendingTable) -> None:
    """It is where it was, and its own floor is no lower than where it began."""
    table.recover((), 1_000)
    table = reopened(table)
    assert (table.next_offset, table.floor <= 1_000, table.last_written) == (1_000, True, None)
    table.recover([(row.identity, row.value) for row in map(waiting_row, range(3))], 1_010)
    table = reopened(table)
    table.recover([(waiting_row(0).identity, None)], 1_020)
    assert (table.next_offset, table.floor, dict(table.counts())) == (1_020, 1_000, {"1m": 2})
    table.close()


def test_rows_of_an_older_build_keep_the_floor_at_the_beginning(table: RocksPendingTable) -> None:
    """Nobody knows where they were written; once all are gone or written anew, it rises."""
    table.write([waiting_row(1), waiting_row(2)], 9)
    db = table._store.db
    for key, value in [*db.items()]:
        if key.startswith(b"\x01"):
            db[key] = value.removesuffix(b"\xff")
        if key == b"\x02meta":
            told = {name: said for name, said in json.loads(value).items() if name not in FIELDS}
            db[key] = json.dumps(told).encode()
    table = reopened(table)
    assert table.floor == 0
    table.write([waiting_row(3)], 19)
    table.write([removal(waiting_row(1)), removal(waiting_row(3))], 29)
    assert (table.floor, dict(table.counts())) == (0, {"1m": 1})
    table.write([waiting_row(2, due_at_ms=8)], 39)
    assert (table.floor, dict(table.counts())) == (20, {"1m": 1})
    table.close()

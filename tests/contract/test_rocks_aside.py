"""Rows that a scan leaves out, as they are no heads of their sequences: they stay in the table, and cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from samples import key_of, removal, waiting_row
from typing_extensions import override

from retryapp.core.row_keys import parse_row_key
from retryapp.runtime.stores import pending
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import StoreIdentity


class Compared(bytes):
    """A row key that counts how often one is compared with another, to bring them into order."""

    compared = 0

    @override
    def __lt__(self, other: bytes) -> bool:
        Compared.compared += 1
        return super().__lt__(other)


def test_the_first_of_many_rows_is_found_without_a_sort(tmp_path: Path) -> None:
    """The pages of each worker ask for it every other second: to sort 20,000 rows stopped its event loop."""
    identity = StoreIdentity(topic="app.orders.pending.changelog", topic_id="i", partition=3)
    table = RocksPendingTable(tmp_path / "3", identity, now_ms=0, max_age_ms=None)
    rows = [waiting_row(n, due_at_ms=100 + n) for n in range(2_000)]
    table.write(rows, 0)
    keys = [Compared(key_of(row)) for row in rows]
    assert table.due(10_000, 2_000, keys[:1]) == (table.page(keys[0], 2_000), None)
    for key in keys[1:-1]:
        table.put_aside(key)
    table.due(10_000, 0, keys[:1], aside=False)
    assert table._cursors[0] == keys[-1], "all others are below it"
    Compared.compared = 0
    assert table.due(0, 0, keys[:1]) == ([], 101)
    assert [key for key, _ in table.page(None, 1)] == keys[:1]
    assert Compared.compared < 2 * 4 * 2_000
    assert [key for key, _ in table.page(None, 2_000)] == keys
    table.close()


def test_a_look_costs_the_same_however_many_rows_are_put_aside(
    tmp_path: Path, reads_of: Callable[[RocksPendingTable], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads none of them again, and compares none; pages show all, and a purge of removed rows leaves them."""
    monkeypatch.setattr(pending, "_PURGE_ROWS", 10)
    identity = StoreIdentity(topic="app.orders.pending.changelog", topic_id="i", partition=3)
    table = RocksPendingTable(tmp_path / "3", identity, now_ms=0, max_age_ms=None)
    read = reads_of(table)
    rows = [waiting_row(n, due_at_ms=100 + n) for n in range(1_000)]
    table.write(rows, 0)
    head, *others = (key_of(row) for row in rows)
    for at in range(0, len(others), 50):
        read.clear()
        due, _ = table.due(10_000, 50, {head}, aside=False)
        assert [key for key, _ in due] == others[at : at + 50]
        assert (len(read) <= 2 * 50 + 2, table._passed) == (True, {head})
        for key, _ in due:
            table.put_aside(key)
    read.clear()
    assert table.due(10_000, 50, {head}, aside=False) == ([], None)
    assert len(read) <= 50
    table.write([removal(row) for row in rows[500:520]], 1)
    left = [key for key in (head, *others) if key not in others[499:519]]
    assert [key for key, _ in table.page(None, 1_000)] == [key for key, _ in table.due(10_000, 1_000)[0]] == left
    assert table.due_times(0, 10_000, 1_000) == [parse_row_key(key).due_at_ms for key in left]
    for key in others[:2]:
        table.take_up(key)
    again = waiting_row(700, due_at_ms=800)
    table.write([again], 2)
    assert [key for key, _ in table.due(10_000, 50, aside=False)[0]] == [head, *others[:2], key_of(again)]
    table.close()

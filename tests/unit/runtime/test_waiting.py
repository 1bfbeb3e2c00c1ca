"""The causes of what waits, as pages and metrics are told."""

from __future__ import annotations

from dataclasses import replace

from samples import WAITING

from retryapp.core.headers import encode_metadata
from retryapp.core.rows import PendingRow, encode_row
from retryapp.ports import PendingEntry
from retryapp.runtime.waiting import KEEP_S, LOOK_ROWS, WaitingCauses
from retryapp.testing import VirtualClock


def entry(message: str) -> PendingEntry:
    """Return a row whose record has failed so."""
    headers = encode_metadata(replace(WAITING, error_message=message))
    return PendingEntry(partition=0, key=b"", value=encode_row(PendingRow(b"k", b"v", headers, 1)))


def test_rows_that_are_due_next_are_counted() -> None:
    """By type, place and message without numbers; a damaged row has no cause; a bounded number is read, seldom."""
    rows = [entry("shard 1"), entry("shard 2"), entry("no bank"), PendingEntry(partition=0, key=b"", value=b"?")]
    asked: list[tuple[str, int]] = []
    clock = VirtualClock(0)
    causes = WaitingCauses(lambda main, limit: asked.append((main, limit)) or rows, clock)
    found = causes.of("orders")
    assert [(each.records, each.name.rpartition(": ")[2]) for each in found] == [(2, "shard <number>"), (1, "no bank")]
    assert (found[0].attempts, found[0].sample) == (2 * WAITING.attempt, WAITING.failure_id)
    rows.clear()
    assert causes.of("orders") == found
    clock.advance(int(KEEP_S * 1_000) + 1)
    assert causes.of("orders") == []
    assert asked == [("orders", LOOK_ROWS)] * 2

"""The table of seen events as a lane brings it up to date and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from retryapp.core.deduplicate import Seen, encode_seen
from retryapp.core.errors import NewerRowError
from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.engine.seen import apply_seen, recover_seen
from retryapp.ports import LaneBatch, LaneReceipt, Sink, TopicPartition
from retryapp.testing.tables import MemorySeenTable

CHANGELOG = TopicPartition("app.orders.seen.changelog", 2)
NOW_MS = 1_000


def row(event: int, offset: int = 7, expires_ms: int = 5_000) -> Seen:
    """Return a row."""
    return Seen(event.to_bytes(16, "big"), offset, expires_ms)


class Table(MemorySeenTable):
    """A table that says what was done with it."""

    def __init__(self, rows: Sequence[Seen] = (), next_offset: int = 0) -> None:
        super().__init__()
        self.write(rows, next_offset, 0)
        self.dropped: str | None = None
        self.calls: list[str] = []

    def close(self) -> None:
        """Note it."""
        self.calls.append("close")

    def drop(self) -> None:
        """Note it."""
        self.calls.append("drop")


@dataclass
class Reader:
    """`ports.TopicReader` over a list of values, one a slice."""

    records: list[tuple[bytes, bytes | None]]
    starts: list[int] = field(default_factory=list)

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Never asked here."""
        raise NotImplementedError

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """See `ports.TopicReader.read`."""
        assert (tp, background) == (CHANGELOG, False)
        self.starts.append(start)
        for offset in range(start, len(self.records)):
            key, value = self.records[offset]
            sink([Record(*CHANGELOG, offset, 0, key, value)], offset + 1)
        return len(self.records)


def logged(*rows: Seen) -> list[tuple[bytes, bytes | None]]:
    """Return rows as the changelog has them."""
    return [(each.identity, encode_seen(each)) for each in rows]


async def test_only_the_tail_is_read() -> None:
    """The copy on disk has the rest; what has expired meanwhile is passed over."""
    table = Table([row(1)], next_offset=1)
    reader = Reader(logged(row(1), row(2), row(3, expires_ms=NOW_MS)))
    found: Any = await recover_seen(lambda: table, reader, CHANGELOG, now_ms=NOW_MS)
    assert found is table
    assert reader.starts == [1]
    assert [table.find(row(n).identity) is not None for n in (1, 2, 3)] == [True, True, False]
    assert (table.next_offset, table.calls) == (3, [])


async def test_a_copy_that_is_ahead_of_its_topic_is_made_anew() -> None:
    """The topic lost its end: what it has is all that can be known, and no lane stops for it."""
    tables = [Table([row(1), row(9)], next_offset=50), Table()]
    left = list(tables)
    reader = Reader(logged(row(1)))
    found: Any = await recover_seen(lambda: left.pop(0), reader, CHANGELOG, now_ms=NOW_MS)
    assert found is tables[1]
    assert (tables[0].calls, reader.starts) == (["drop"], [50, 0])
    assert (found.find(row(1).identity), found.find(row(9).identity)) == (row(1), None)


async def test_a_table_that_cannot_be_brought_up_to_date_is_closed() -> None:
    """Its folder would stay locked for the next try; a row of a newer version stops the lane."""
    table = Table()
    raw = b"\x02" + encode_seen(row(1))[1:]
    with pytest.raises(NewerRowError):
        await recover_seen(lambda: table, Reader([(row(1).identity, raw)]), CHANGELOG, now_ms=NOW_MS)
    assert table.calls == ["close"]


def test_of_a_batch_only_the_rows_are_written() -> None:
    """With the offsets that they got; a batch without rows leaves the table alone."""
    table = Table(next_offset=3)
    other = Outgoing("app.orders.events", 2, b"k", b"v", ())
    sent = [other, *(Outgoing(*CHANGELOG, key, value, ()) for key, value in logged(row(1), row(2)))]
    apply_seen(table, CHANGELOG, LaneBatch(publishes=sent), LaneReceipt([90, 10, 11], None), NOW_MS)
    assert (table.find(row(2).identity), table.next_offset) == (row(2), 12)
    apply_seen(table, CHANGELOG, LaneBatch(publishes=[other]), LaneReceipt([91], None), NOW_MS)
    assert table.next_offset == 12


async def test_a_table_is_made_anew_where_the_broker_took_a_transaction_back() -> None:
    """It may have rows that its changelog never had for anybody else."""
    tables = [Table([row(1)], next_offset=1), Table([], next_offset=0)]
    first, second = tables
    reader = Reader(logged(row(2)))
    found: Any = await recover_seen(lambda: tables.pop(0), reader, CHANGELOG, now_ms=NOW_MS, rolled_back=True)
    assert (found is second, first.calls, reader.starts) == (True, ["drop"], [0])
    assert found.find(row(1).identity) is None

"""A producer's duplicates: skipped, counted, and never at the price of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from doubles import events_of, pass_time

from retryapp.core.deduplicate import Deduplicate, Seen, decode_seen, encode_seen
from retryapp.core.errors import NewerRowError
from retryapp.core.lifecycle import Skipped
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.recovery import recover_seen
from retryapp.ports import Event, TopicPartition, TopicReader
from retryapp.testing import MemoryLaneTransport, MemoryPartition
from retryapp.testing.tables import MemorySeenTable

BY_HEADER = Deduplicate("header:event-id", window="1h")
HOUR_MS = 3_600_000


class Service:
    """A handler that fails as told and notes what it was called with."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.seen: list[bytes] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, value: bytes) -> None:
        self.seen.append(value)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("503")


def partition(service: Service, policy: str = "1m", **options: Any) -> MemoryPartition:
    return MemoryPartition(service, policy, **{"deduplicate": BY_HEADER, **options})


async def send(orders: MemoryPartition, *told: tuple[bytes, str | None]) -> None:
    """Send records: value and event id."""
    for value, event in told:
        await orders.send(value, headers=() if event is None else (("event-id", event.encode()),))


def skipped(orders: MemoryPartition) -> list[tuple[str, int]]:
    """Return what the events topic tells of duplicates: the record, and the offset of the first."""
    return [(event.origin, event.first_offset) for event in events_of(orders, Skipped)]


async def test_a_duplicate_never_runs_behind_a_later_record_of_its_key() -> None:
    """Once its window is over it is no duplicate any more; by then a note says that it is settled."""
    service = Service()
    options: dict[str, Any] = {"deduplicate": Deduplicate("header:event-id", window="60s"), "order": Order.KEY}
    async with partition(service, concurrency=3, **options) as orders:

        async def sent(value: bytes, key: bytes, event: bytes) -> None:
            await orders.send(value, key=key, headers=(("event-id", event),))

        await sent(b"old", b"a", b"e1")
        await orders.advance(59_000)
        service.gate = asyncio.Event()
        await sent(b"long", b"b", b"e2")
        await sent(b"old", b"a", b"e1")
        service.gate, gate = None, service.gate
        await sent(b"new", b"a", b"e3")
        await pass_time(orders, 600, 100)
        transport = orders.transport
    transport.clock.advance(60_000)
    gate.set()
    async with partition(service, concurrency=3, transport=transport, **options) as orders:
        await orders.settle()
        assert service.seen == [b"old", b"long", b"new", b"long"]


async def test_a_duplicate_is_skipped_and_told() -> None:
    """Its offset moves, an event says which record it repeats, and the handler does not see it."""
    service = Service()
    async with partition(service) as orders:
        await send(orders, (b"a", "e1"), (b"b", "e2"), (b"a again", "e1"), (b"no id", None), (b"no id", None))
        await orders.advance(1_000)
        assert service.seen == [b"a", b"b", b"no id", b"no id"]
        assert skipped(orders) == [("orders@kq8G0bTz/0/2", 0)]
        assert len(orders.observer.of(Event.SKIPPED)) == 1
        assert orders.transport.offsets[orders.engine.sources[0]] == 5


async def test_a_duplicate_beside_the_first_waits_for_its_outcome() -> None:
    """While the first runs nothing of the duplicate is durable: if the worker dies, both are read again."""
    service = Service()
    service.gate = asyncio.Event()
    async with partition(service, concurrency=4) as orders:
        await send(orders, (b"a", "e1"), (b"a again", "e1"), (b"b", "e2"))
        await pass_time(orders, 1_000, 100)
        assert service.seen == [b"a", b"b"]
        assert skipped(orders) == []
        assert orders.transport.offsets[orders.engine.sources[0]] == 0
    service.gate.set()
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(1_000)
        assert service.seen == [b"a", b"b", b"a", b"b"], "the first runs again, the duplicate never"
        assert skipped(orders) == [("orders@kq8G0bTz/0/1", 0)]
        assert orders.transport.offsets[orders.engine.sources[0]] == 3


@pytest.mark.parametrize("fate", ["parked", "dead"])
async def test_any_outcome_of_the_first_counts(fate: str) -> None:
    """A first record that failed waits or is dead: the event is known; its redelivery is no duplicate."""
    service = Service(fails=2 if fate == "dead" else 1)
    async with partition(service) as orders:
        await send(orders, (b"a", "e1"), (b"a again", "e1"))
        await orders.to_rest()
        assert service.seen == [b"a", b"a"], "two attempts at one record"
        assert len(orders.dead_letters) == (fate == "dead")
        await send(orders, (b"a at last", "e1"))
        assert service.seen == [b"a", b"a"]
        assert [first for _, first in skipped(orders)] == [0, 0]


async def test_events_are_forgotten_after_the_window() -> None:
    """Counted from the moment at which the first was settled; a duplicate does not make it longer."""
    service = Service()
    async with partition(service) as orders:
        await send(orders, (b"a", "e1"))
        await orders.advance(HOUR_MS // 2)
        await send(orders, (b"a again", "e1"))
        await orders.advance(HOUR_MS // 2 + 1_000)
        await send(orders, (b"a anew", "e1"), (b"a anew again", "e1"))
        assert service.seen == [b"a", b"a anew"]
        assert [first for _, first in skipped(orders)] == [0, 2]


async def test_a_redelivered_record_is_no_duplicate_of_itself() -> None:
    """Offsets set back by hand: what counted as the event is handled again, its duplicate is not."""
    service = Service()
    async with partition(service) as orders:
        await send(orders, (b"a", "e1"), (b"a again", "e1"))
        await orders.advance(1_000)
    orders.transport.offsets[orders.engine.sources[0]] = 0
    async with partition(service, transport=orders.transport) as orders:
        await orders.advance(1_000)
        assert service.seen == [b"a", b"a"]


async def test_rows_of_records_that_were_fine_wait_as_long_as_offsets() -> None:
    """Nobody waits for them: a burst is one transaction after the tick, not one for each record."""
    service = Service()
    async with partition(service) as orders:
        for n in range(20):
            await send(orders, (b"v", f"e{n}"))
        assert orders.transport.batches == []
        await orders.advance(300)
        (batch,) = orders.transport.batches
        rows = [decode_seen(out.key or b"", out.value or b"") for out in batch.publishes]
        assert [row.origin_offset for row in rows] == list(range(20))
        assert {out.topic for out in batch.publishes} == {"app.orders.seen.changelog"}


@pytest.mark.parametrize("error", [KeyError("no such field"), SystemExit(3)])
async def test_a_function_that_fails_is_told_and_its_record_handled(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """A record is rather handled twice than not at all; one that ends the process would end the next one, too."""

    def broken(_record: object) -> str:
        raise error

    service = Service()
    async with partition(service, deduplicate=Deduplicate(broken)) as orders:
        await orders.send(*[b"a"] * 7)
        await orders.advance(1_000)
        assert service.seen == [b"a"] * 7
    told = [record for record in caplog.records if record.msg == "retryapp.no_event_id"]
    assert [(vars(record)["offset"], vars(record)["count"]) for record in told] == [(0, 1), (1, 2), (3, 4)]
    assert vars(told[0])["place"].endswith("broken")


async def test_a_function_that_returns_no_event_id_is_told_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """A number is a usual id: the log said that the function had failed."""

    def number(_record: object) -> int:
        return 7

    service = Service()
    async with partition(service, deduplicate=Deduplicate(number)) as orders:  # type: ignore[arg-type]
        await orders.send(b"a")
    (told,) = [vars(record) for record in caplog.records if record.msg == "retryapp.no_event_id"]
    assert told["error_message"] == "an event id is str, bytes or None, not int: this record is not deduplicated"


CHANGELOG = TopicPartition("app.orders.seen.changelog", 2)
NOW_MS = 1_000


def row(event: int, offset: int = 7, expires_ms: int = 5_000) -> Seen:
    return Seen(event.to_bytes(16, "big"), offset, expires_ms)


class Table(MemorySeenTable):
    """A table that notes its end."""

    def __init__(self, rows: Sequence[Seen] = (), next_offset: int = 0) -> None:
        super().__init__()
        self.write(rows, next_offset, 0)
        self.calls: list[str] = []

    def close(self) -> None:
        self.calls.append("close")

    def drop(self) -> None:
        self.calls.append("drop")


def logged(*rows: tuple[bytes, bytes]) -> TopicReader:
    transport = MemoryLaneTransport()
    for key, value in rows:
        transport.append(CHANGELOG, key, value)
    return transport.reader


def entry(row: Seen) -> tuple[bytes, bytes]:
    return row.identity, encode_seen(row)


async def test_a_copy_that_its_topic_does_not_have_is_made_anew() -> None:
    """The topic lost its end: what it has is all that can be known, and no lane stops for it."""
    tables = [Table([row(1), row(9)], 50), Table()]
    left = list(tables)
    reader = logged(entry(row(1)))
    found: Any = await recover_seen(lambda: left.pop(0), reader, CHANGELOG, now_ms=NOW_MS)
    assert found is tables[1]
    assert tables[0].calls == ["drop"]
    assert (found.find(row(1).identity), found.find(row(9).identity)) == (row(1), None)


async def test_a_table_that_cannot_be_brought_up_to_date_is_closed() -> None:
    """Its folder would stay locked for the next try; a row of a newer version stops the lane."""
    table = Table()
    raw = b"\x02" + encode_seen(row(1))[1:]
    with pytest.raises(NewerRowError):
        await recover_seen(lambda: table, logged((row(1).identity, raw)), CHANGELOG, now_ms=NOW_MS)
    assert table.calls == ["close"]

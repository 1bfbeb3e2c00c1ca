"""A partition whole: deliver, park, fire and the lane, on memory topics in virtual time."""

from __future__ import annotations

import json

from doubles import (
    DLQ,
    EVENTS,
    MAIN,
    REDELIVERY,
    RETRY,
    BankDownError,
    down,
    failing_first,
    offsets,
)

from retryapp.core.names import RETRY_ATTEMPT
from retryapp.core.rows import ROW_KEY_BYTES, parse_row_key
from retryapp.core.verdicts import RetryLater
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, VirtualClock

# -- the whole way ----------------------------------------------------------------------------------------------------


async def test_a_failed_record_comes_back_exactly_when_due_until_it_succeeds() -> None:
    """Parked, fired, delivered again; then one event tells of it and nothing is left waiting."""
    clock, started = VirtualClock(), list[int]()
    begin_ms = clock.wall_ms()
    async with MemoryPartition(failing_first(2, started, clock.wall_ms), "5m 1h", clock=clock) as orders:
        await orders.send(b"v", key=b"k", headers=(("trace", b"1"),))
        assert orders.waiting == {"5m": 1}
        await orders.advance(299_999)
        assert (len(started), orders.waiting) == (1, {"5m": 1})
        await orders.advance(1)
        assert (len(started), orders.waiting) == (2, {"1h": 1})
        await orders.advance(3_599_999)
        assert len(started) == 2
        await orders.advance(1)
        assert [at - begin_ms for at in started] == [0, 300_000, 3_900_000]
        assert (orders.waiting, orders.dead_letters) == ({}, [])
        (event,) = orders.records(EVENTS)
        told = json.loads(event.value or b"")
        assert (event.key, told["attempt"], told["lateness_ms"]) == (b"app/orders@kq8G0bTz/0/0", 3, 0)
        for copy in (*orders.records(RETRY.topic), *orders.records(REDELIVERY.topic)):
            assert (copy.key, copy.value, copy.headers[0]) == (b"k", b"v", ("trace", b"1"))


async def test_a_record_that_never_succeeds_is_dead_after_exactly_max_attempts() -> None:
    """And rests there."""
    started: list[int] = []
    clock = VirtualClock()
    async with MemoryPartition(failing_first(99, started, clock.wall_ms), "1s 10s 1m", clock=clock) as orders:
        await orders.send(b"v")
        for ms in (1_000, 10_000, 60_000, 3_600_000):
            await orders.advance(ms)
        assert len(started) == 4
        assert [(dead.reason, dead.attempt) for dead in orders.dead_letters] == [("exhausted", 4)]
        assert (orders.waiting, len(orders.records(RETRY.topic)), len(orders.records(REDELIVERY.topic))) == ({}, 3, 3)


async def test_every_offset_is_committed_in_the_end() -> None:
    """Of the main, the retry and the redelivery topic, each past its last record."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a", b"b")
        await orders.advance(1_000)
        await orders.advance(250)
        ends = {tp: orders.transport.read(tp)[-1].offset + 1 for tp in (MAIN, RETRY, REDELIVERY)}
        assert orders.transport.offsets == ends


async def test_due_rows_fire_in_due_order_whatever_the_order_of_failure() -> None:
    """Within one due time by origin offset."""
    delays = {b"0": "10s", b"1": "1s", b"2": "5s", b"3": "1s"}
    clock = VirtualClock()

    async def handler(value: bytes) -> None:
        raise RetryLater(delays[value])

    async with MemoryPartition(handler, "1m", clock=clock) as orders:
        await orders.send(*delays)
        await orders.advance(20_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [1, 3, 2, 0]


async def test_a_row_that_is_due_sooner_wakes_the_firing_task() -> None:
    """It sleeps until the first due time that it knew."""

    async def handler(value: bytes) -> None:
        raise RetryLater(value.decode())

    async with MemoryPartition(handler, "1m") as orders:
        await orders.send(b"50s")
        await orders.advance(1_000)
        await orders.send(b"2s")
        await orders.advance(1_999)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(1)
        assert offsets(orders.records(REDELIVERY.topic)) == [1]


async def test_rows_that_waited_through_a_restart_fire_when_due() -> None:
    """The new owner finds them in the changelog and keeps their due time."""
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"v")
        orders.lane.fail(RuntimeError("lane"))
        await orders.settle()
        assert orders.waiting == {}
        await orders.advance(1_000)
        assert (orders.lane.session, orders.waiting) == (2, {"5m": 1})
        await orders.advance(298_999)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(1)
        assert len(orders.records(REDELIVERY.topic)) == 1


async def test_a_wall_clock_that_is_set_back_never_fires_early_and_one_set_ahead_never_loses() -> None:
    """Due times are wall times, looked at when firing."""
    async with MemoryPartition(down, "50s") as orders:
        await orders.send(b"v")
        orders.clock.jump_wall(-30_000)
        await orders.advance(50_000)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(30_000)
        assert len(orders.records(REDELIVERY.topic)) == 1


async def test_a_damaged_tier_record_is_buried_instead_of_parked() -> None:
    """It has no due time that could be believed; others are parked."""
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"a")
        (tier,) = orders.records(RETRY.topic)
        spoilt = tuple((name, b"x" if name == RETRY_ATTEMPT else value) for name, value in tier.headers)
        orders.transport.append(RETRY, b"k", b"damaged", spoilt)
        await orders.send(b"b")
        assert orders.waiting == {"5m": 2}
        assert [dead.reason for dead in orders.dead_letters] == ["damaged"]
        assert orders.records(DLQ)[0].value == b"damaged"


async def test_a_row_that_cannot_be_read_is_buried_and_holds_nothing_up() -> None:
    """It leaves the table, and what is due with it fires."""
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"a", b"b")
        assert orders.transport.pending is not None
        (bad, _), _ = orders.transport.pending.page(None, 2)
        orders.transport.pending.rows[bad] = orders.transport.pending.rows[bad]._replace(value=b"\xff rubbish")
        await orders.advance(300_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [1]
        assert [(dead.reason, dead.origin.offset) for dead in orders.dead_letters[:1]] == [("damaged", 0)]
        assert orders.transport.pending.get(bad) is None


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_progress_is_told_once_a_minute_and_at_the_end() -> None:
    """Counts by record, ranges without gaps."""

    async def handler(value: bytes) -> None:
        if value == b"bad":
            raise BankDownError

    async with MemoryPartition(handler, "1h") as orders:
        await orders.send(b"good", b"bad")
        await orders.advance(59_999)
        await orders.send(b"good")
        assert orders.records(EVENTS) == []
        await orders.advance(1)
        await orders.send(b"good")
        await orders.send(b"bad")
        await orders.finish()
        told = [json.loads(event.value or b"") for event in orders.records(EVENTS)]
        assert [(t["from_offset"], t["to_offset"], t["received"], t["first_try_ok"], t["failed"]) for t in told] == [
            (0, 4, 4, 3, 1),
            (4, 5, 1, 0, 1),
        ]


async def test_observers_hear_of_each_step_with_its_facts() -> None:
    """In the order of a record's life."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        await orders.advance(1_250)
        told = [(o.event, o.attempt, o.tier, o.reason) for o in orders.observer.seen if o.failure_id is not None]
        assert told == [
            (Event.FAILED, 1, None, None),
            (Event.SCHEDULED, 1, "1s", None),
            (Event.PARKED, 1, "1s", None),
            (Event.FIRED, 1, "1s", None),
            (Event.FAILED, 2, None, None),
            (Event.DEAD, 2, None, "exhausted"),
        ]
        (fired,) = orders.observer.of(Event.FIRED)
        assert fired.lateness_ms == 250
        (parked,) = orders.observer.of(Event.PARKED)
        keys = [record.key or b"" for record in orders.records("app.orders.pending.changelog")]
        (put, _removal) = [parse_row_key(key) for key in keys if len(key) == ROW_KEY_BYTES]
        assert (put.due_at_ms, put.origin_offset) == (parked.due_at_ms, 0)

"""A partition whole, on memory topics in virtual time: each record comes back when due, and never early."""

from __future__ import annotations

import asyncio
import json

from doubles import (
    EVENTS,
    REDELIVERY,
    BankDownError,
    again,
    deliver_once,
    down,
    failing,
    make_context,
    make_record,
    settle,
    the,
)

from retryapp.core.rows import ROW_KEY_BYTES, parse_row_key
from retryapp.engine.handler.handler import Delivery
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, VirtualClock

# -- the whole way ----------------------------------------------------------------------------------------------------


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_progress_is_told_once_a_minute_and_at_the_end() -> None:
    """Counts by record, ranges without gaps; one whose handler published was fine at once like the others."""

    async def handler(value: bytes, record: Delivery) -> None:
        if value != b"silent":
            record.publish("payments", value)
        if value == b"bad":
            raise BankDownError

    async with MemoryPartition(handler, "1h") as orders:
        await orders.send(b"good", b"bad")
        await orders.advance(59_999)
        await orders.send(b"silent")
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
        assert sum(o.count for o in orders.observer.of(Event.SUCCEEDED)) == 3


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


async def test_a_wall_clock_that_is_set_back_while_it_waits_makes_it_wait_on(clock: VirtualClock) -> None:
    """The due time is looked at again after the wait."""
    out, _ = the(await deliver_once(make_context(failing(BankDownError()), "10s"), make_record()))
    started: list[int] = []

    async def handler(_value: bytes) -> None:
        started.append(clock.wall_ms())

    delivery = asyncio.create_task(deliver_once(make_context(handler, "10s"), again(out)))
    await settle()
    clock.jump_wall(-5_000)
    clock.advance(10_000)
    await settle()
    assert started == []
    clock.advance(5_000)
    await delivery
    assert len(started) == 1


async def test_nothing_fires_by_a_clock_that_is_doubted() -> None:
    """Late is better than early; it goes on by itself once the clock is trusted."""
    clock = VirtualClock()
    async with MemoryPartition(down, "1s 1h", clock=clock) as orders:
        await orders.send(b"a")
        clock.trusted = False
        await orders.advance(500)
        clock.jump_wall(7_200_000)
        for _ in range(8):
            await orders.advance(250)
        assert not orders.records(REDELIVERY.topic)
        clock.jump_wall(-7_200_000)
        clock.trusted = True
        await orders.advance(250)
        assert len(orders.records(REDELIVERY.topic)) == 1

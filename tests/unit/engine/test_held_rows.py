"""Rows of an ordered handler: which are claimed, how many at once, and what becomes of a record that has one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, committed, held, pass_time, serving

from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.ports import Event
from retryapp.testing import MemoryLaneTransport, MemoryPartition


async def headless(count: int, size: int = 1) -> MemoryLaneTransport:
    """Return what a worker leaves that dies when so many heads are done, each with one held row behind it."""
    gate, transport = Gate(), MemoryLaneTransport()
    async with MemoryPartition(gate, "1s", concurrency=count, order=Order.KEY, transport=transport) as orders:
        for number in range(count):
            transport.append(MAIN, b"%d" % number, b"head %d" % number)
            transport.append(MAIN, b"%d" % number, b"%d" % number + b"x" * size)
        await orders.settle()
        for value in list(gate.running):
            gate.let(value, BankDownError())
        await orders.settle()
        assert held(orders) == count
        await orders.advance(1_000)
        for value in list(gate.running):
            gate.let(value)
        await orders.until(lambda: set(orders.waiting) <= {"held"})
    return transport


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE])
async def test_held_rows_that_exceed_the_room_are_claimed_as_soon_as_there_is_more(order: Order) -> None:
    """In a handler that keeps the order, and in one that does so no more; nothing else wakes the scheduler."""
    transport = await headless(200)
    gate = Gate()
    gate.let_all()
    async with MemoryPartition(gate, "1s", order=order, transport=transport) as orders:
        await orders.advance(1_000)
        assert len(gate.done) == 200


async def test_held_rows_are_claimed_within_the_bytes_of_the_window() -> None:
    """The last one may exceed it."""
    for order in (Order.KEY, Order.NONE):
        transport, gate = await headless(20, 1_000), Gate()
        async with MemoryPartition(
            gate, "1s", order=order, concurrency=20, transport=transport, max_in_flight_bytes=3_000
        ) as orders:
            await orders.advance(1_000)
            assert 1 <= len(gate.started) <= 3
            gate.let_all()
            await orders.advance(1_000)
            assert len(gate.done) == 20


async def test_a_record_that_is_read_again_beside_its_row_is_passed_and_earlier_ones_come_before_it() -> None:
    """Somebody has set the group's offset back. What is at that offset now may be another record: that one runs."""
    gate, transport = Gate(), MemoryLaneTransport()
    async with MemoryPartition(gate, "1s 9s", order=Order.KEY, transport=transport) as orders:
        await orders.send(b"0", b"1", b"2", b"3", key=b"a")
        for value in (b"0", b"1"):
            await gate.end(orders, value)
        await gate.end(orders, b"2", BankDownError())
        assert (committed(orders), orders.waiting) == (4, {"1s": 1, "held": 1})
    transport.offsets[MAIN], gate = 0, Gate()
    async with MemoryPartition(gate, "1s 9s", order=Order.KEY, transport=transport) as orders:
        await gate.end(orders, b"0", BankDownError())
        assert (committed(orders), orders.waiting) == (4, {"1s": 2, "held": 2})
        await gate.end_all(orders)
        assert (gate.done, orders.observer.of(Event.LANE_FAILED)) == ([b"0", b"1", b"2", b"3"], [])
        orders.clock.advance(10)
        await orders.send(b"4", key=b"a")
        gate.open = False
        await orders.send(b"5", key=b"a")
        await gate.end(orders, b"5", BankDownError())
    log = transport.broker.logs[MAIN]
    transport.offsets[MAIN], log.end = 5, 5
    del log.entries[-1]
    transport.clock.advance(10)
    transport.append(MAIN, b"b", b"other 5")
    gate = Gate()
    gate.let_all()
    async with MemoryPartition(gate, "1s 9s", order=Order.KEY, transport=transport) as orders:
        await orders.to_rest()
        assert sorted(gate.done) == [b"5", b"other 5"]


async def test_a_held_record_looks_to_its_handler_as_it_came() -> None:
    """One that was copied from the dead letters to the main topic is a new record: the headers of its copy are gone."""
    seen: dict[bytes, list[tuple[object, ...]]] = {}

    async def handle(value: bytes, record: Delivery) -> None:
        seen.setdefault(value, []).append((record.attempt, record.headers, record.due_at_ms))
        if value == b"dead":
            raise Reject("wrong")
        if value == b"head" and record.attempt == 1:
            raise BankDownError

    async with serving(handle, "1s", b"dead", key=b"a", headers=(("trace", b"1"),), order=Order.KEY) as (orders, _):
        (letter,) = orders.records("app.orders.dlq")
        await orders.send(b"head", key=b"a")
        await orders.send(b"copied", key=b"a", headers=letter.headers)
        assert held(orders) == 1
        await orders.to_rest()
        assert seen[b"copied"] == [(1, (("trace", b"1"),), None)]


async def test_due_rows_behind_a_head_are_looked_through_once_not_for_each_of_them() -> None:
    """The handler had no order when they failed. A look costs the more the more of them there are."""
    gate, transport = Gate(), MemoryLaneTransport()
    async with MemoryPartition(gate, "1s", concurrency=50, transport=transport) as orders:
        await orders.send(*(b"%02d" % number for number in range(50)), key=b"a")
        for value in list(gate.running):
            gate.let(value, BankDownError())
        await orders.settle()
    gate = Gate()
    gate.let_all()
    async with MemoryPartition(gate, "1s", order=Order.KEY, transport=transport) as orders:
        table, looks = orders.transport.pending, list[int]()
        assert table is not None
        look = table.due

        def counted(now_ms: int, limit: int, claimed: Collection[bytes] = (), **more: Any) -> Any:
            looks.append(len(claimed))
            return look(now_ms, limit, claimed, **more)

        table.due = counted  # type: ignore[method-assign]
        await orders.advance(1_000)
        await orders.settle()
        assert gate.done == [b"%02d" % number for number in range(50)]
        assert len(looks) <= 3


async def test_a_row_does_not_overtake_the_record_before_it_that_waits_for_the_offset() -> None:
    """The handler had no order when the row was written. No crash comes between the two turns."""
    gate, transport = Gate(), MemoryLaneTransport()
    async with serving(gate, "1s", b"hung", key=b"b", concurrency=9, transport=transport) as (orders, _):
        await orders.send(b"1", b"2", key=b"a")
        gate.let(b"2", BankDownError())
        await pass_time(orders, 400, 100)
        assert orders.waiting == {"1s": 1}
    async with serving(Gate(), "1s", order=Order.KEY, concurrency=9, transport=transport) as (orders, gate):
        await orders.advance(1_000)
        assert gate.started == [b"hung", b"1"]
        for value in (b"1", b"2"):
            await gate.end(orders, value)
        assert (gate.done, committed(orders), orders.waiting) == ([b"1", b"2"], 0, {})
        assert dict(transport.settled) == {1: True, 2: False}, "who opens next does not run the first one again"

"""The group's offset is set back, and records come again."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import CONTROL, DLQ, MAIN, BankDownError, Gate, events_of, failures, lose_the_end, pass_time, serving

from retryapp.core import settled
from retryapp.core.control import Command, Verb
from retryapp.core.lifecycle import Commanded
from retryapp.core.policy import RetryPolicy
from retryapp.core.verdicts import Reject, Skip
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step

POLICY = RetryPolicy("1m*3", timeout="50s")
SHORT = RetryPolicy("1s*3", timeout="30s")


async def set_back() -> MemoryLaneTransport:
    """Return what a worker has left that has failed one record, done another and rejected a third: all come again."""
    async with serving(Gate(), POLICY, b"waits", b"fine", b"dead", concurrency=3) as (orders, gate):
        gate.let(b"waits", BankDownError())
        gate.let(b"fine")
        gate.let(b"dead", Reject())
        await orders.advance(1_000)
        assert (orders.waiting, len(orders.dead_letters)) == ({"1m": 1}, 1)
        transport = orders.transport
    assert transport.offsets[MAIN] == 3
    transport.broker.notes[MAIN] = ""
    transport.offsets[MAIN] = 0
    return transport


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_record_that_waits_keeps_its_row_and_the_others_run_again(order: Order) -> None:
    """Else it would be in two runs at once, and its next failure would begin its attempts anew."""
    gate = Gate()
    transport = await set_back()
    async with MemoryPartition(gate, POLICY, concurrency=3, order=order, transport=transport) as orders:
        assert gate.started == [b"fine", b"dead"]
        await orders.advance(60_000)
        assert gate.started == [b"fine", b"dead", b"waits"]
        await gate.end_all(orders)
        assert orders.waiting == {}
        assert [letter.value for letter in orders.records(DLQ)] == [b"dead"]


def lose_end(transport: MemoryLaneTransport) -> None:
    """Empty the main topic, as a broker does that has lost what the others had."""
    lose_the_end(transport, 0)
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 0
    transport.clock.advance(1)


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_replay_is_refused_of_a_record_that_is_to_come_again(order: Order) -> None:
    """Also before it is read: its row would run beside its first delivery, or its outcome would replace the row."""
    gate = Gate()
    transport = await set_back()
    sent = Command(id="c", verb=Verb.REPLAY, failure_id="app/orders@kq8G0bTz/0/2").to_record(*CONTROL)
    transport.append(CONTROL, sent.key, sent.value)
    async with MemoryPartition(gate, POLICY, concurrency=3, order=order, transport=transport) as orders:
        await orders.advance(1_000)
        assert gate.started == [b"fine", b"dead"]
        assert [event.refused for event in events_of(orders, Commanded)] == ["running"]
        gate.let(b"dead", Reject())
        gate.let(b"fine")
        await orders.advance(1_000)
        assert (await orders.command("replay", 2))["refused"] is None
        assert gate.started == [b"fine", b"dead", b"dead"]


async def set_back_before_a_row() -> MemoryLaneTransport:
    """Return what a worker has left that has done one record and failed another one: both come again."""
    async with serving(Gate(), SHORT, b"hangs", key=b"a", concurrency=3, order=Order.KEY) as (orders, gate):
        gate.let(b"hangs")
        await orders.send(b"waits", key=b"b")
        gate.let(b"waits", BankDownError())
        await orders.advance(500)
        assert (orders.waiting, orders.transport.offsets[MAIN]) == ({"1s": 1}, 2)
        transport = orders.transport
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 0
    return transport


async def pass_what_waits(gate: Gate, orders: MemoryPartition) -> None:
    """Have what waits end, and a later record of its key, while one that comes again hangs before them."""
    assert gate.started == [b"hangs"]
    await orders.send(b"later", key=b"b")
    for _ in range(15):
        await orders.advance(200)
        for value in sorted({b"waits", b"later"} & {*gate.running}):
            gate.let(value)
    await orders.settle()


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY, Order.LATEST])
async def test_a_row_that_has_ended_stays_so_although_the_offset_has_not_passed_its_record(order: Order) -> None:
    """After a kill its record would begin anew, and in an ordered handler behind later ones of its key."""
    gate = Gate()
    transport = await set_back_before_a_row()
    async with MemoryPartition(gate, SHORT, concurrency=3, order=order, transport=transport) as orders:
        await pass_what_waits(gate, orders)
        assert sorted(gate.done) == ([b"later"] if order is Order.LATEST else [b"later", b"waits"])
        assert (orders.waiting, transport.offsets[MAIN]) == ({}, 0)
    async with serving(Gate(), SHORT, concurrency=3, order=order, transport=transport) as (orders, gate):
        assert gate.started == [b"hangs"]
        await gate.end_all(orders)
        assert (gate.done, transport.offsets[MAIN]) == ([b"hangs"], 3)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("after", range(3))
async def test_a_kill_in_a_commit_changes_no_order_of_what_comes_again(after: int, durable: bool) -> None:
    """Whichever of the first commits it is: the note of the row's record, its outcome, or those of the later record."""
    gate = Gate()
    transport = await set_back_before_a_row()
    async with MemoryPartition(gate, SHORT, concurrency=3, order=Order.KEY, transport=transport) as orders:
        dying = transport.pause(Step.COMMIT, after=after, durable=durable)
        await pass_what_waits(gate, orders)
        assert dying.reached
        ended = gate.done
    gate = Gate()
    gate.let_all()
    async with MemoryPartition(gate, SHORT, concurrency=3, order=Order.KEY, transport=transport) as orders:
        await orders.to_rest()
        assert [value for value in gate.done if value != b"hangs"] in ([b"waits", b"later"], [b"later"], [])
        assert b"waits" in ended + gate.done


async def test_behind_an_outcome_that_waits_for_the_offset_no_row_begins_in_an_ordered_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where its note does not fit, the row's record would run once more after a crash."""
    transport = await set_back_before_a_row()
    monkeypatch.setattr(settled, "MAX_PAYLOAD_BYTES", 0)
    async with serving(Gate(), SHORT, concurrency=3, order=Order.KEY, transport=transport) as (orders, gate):
        await pass_time(orders, 2_000, 200)
        assert (gate.started, orders.waiting) == ([b"hangs"], {"1s": 1})
        await gate.end_all(orders)
        assert gate.done[:2] == [b"hangs", b"waits"]


@pytest.mark.parametrize("ends", [None, Skip("not ours")], ids=["fine", "skipped"])
@pytest.mark.parametrize("fits", [True, False])
async def test_no_row_begins_before_the_outcome_of_an_earlier_record_of_its_key_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, ends: Exception | None, *, fits: bool
) -> None:
    """After a kill the earlier one would run again behind the row that has ended."""
    async with serving(Gate(), SHORT, b"hangs", key=b"a", concurrency=3, order=Order.KEY) as (orders, gate):
        await orders.send(b"first", b"row", key=b"b")
        for value, error in ((b"hangs", None), (b"first", None), (b"row", BankDownError())):
            await gate.end(orders, value, error)
        await orders.advance(500)
        transport = orders.transport
    assert (transport.offsets[MAIN], orders.waiting) == (3, {"1s": 1})
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 0
    if not fits:
        monkeypatch.setattr(settled, "MAX_PAYLOAD_BYTES", 0)
    async with serving(Gate(), SHORT, concurrency=3, order=Order.KEY, transport=transport) as (orders, gate):
        await gate.end(orders, b"first", ends)
        await pass_time(orders, 2_000, 200)
        assert gate.started == [b"hangs", b"first", *([b"row"] * fits)]
        if fits:
            await gate.end(orders, b"row")
    async with serving(Gate(), SHORT, concurrency=3, order=Order.KEY, transport=transport) as (orders, gate):
        gate.let_all()
        await orders.to_rest()
        assert gate.done == ([b"hangs"] if fits else [b"hangs", b"first", b"row"])


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_record_that_is_replayed_before_it_is_read_again_runs_once(order: Order) -> None:
    """The replay is refused; else it would be in two runs at once."""
    gate = Gate()
    settings: Any = {"concurrency": 1, "max_in_flight": 1, "order": order}
    async with MemoryPartition(gate, SHORT, **settings) as orders:
        for value, error in ((b"hangs", None), (b"dead", Reject())):
            await orders.send(value, key=value)
            gate.let(value, error)
            await orders.advance(500)
        transport = orders.transport
    assert transport.offsets[MAIN] == 2
    transport.broker.notes[MAIN], transport.offsets[MAIN], gate = "", 0, Gate()
    async with MemoryPartition(gate, SHORT, transport=transport, **settings) as orders:
        assert (await orders.command("replay", 1))["refused"] == "running"
        gate.let(b"hangs")
        await orders.advance(500)
        assert gate.started == [b"hangs", b"dead"]
        await gate.end_all(orders)
        assert (gate.done, transport.offsets[MAIN]) == ([b"hangs", b"dead"], 2)


async def lost_end(*before: bytes, key: bytes = b"a") -> MemoryLaneTransport:
    """Return what a worker has left that has failed a record, behind others; the topic has lost its end."""
    async with serving(Gate(), "1m*3", concurrency=3, order=Order.KEY) as (orders, gate):
        for value in (*before, b"old"):
            await orders.send(value, key=key if value == b"old" else b"b")
            await gate.end(orders, value, BankDownError() if value == b"old" else None)
        await orders.advance(500)
        assert orders.waiting == {"1m": 1}
        transport = orders.transport
    lose_end(transport)
    return transport


@pytest.mark.parametrize("order", Order)
async def test_another_record_at_the_offset_of_a_row_goes_all_its_way(order: Order) -> None:
    """In an order, its outcome removes no row that it has just written, and no offset has two rows."""
    transport = await lost_end()
    transport.append(MAIN, b"a", b"new")
    async with serving(Gate(), "1m*3", concurrency=3, order=order, transport=transport) as (orders, gate):
        for _ in range(60):
            await orders.advance(10_000)
            for value in gate.running:
                gate.let(value, BankDownError())
            await orders.settle()
        assert (orders.waiting, failures(orders), gate.started.count(b"new")) == ({}, [], 4)


@pytest.mark.parametrize("order", Order)
async def test_a_row_beyond_the_end_of_its_topic_runs(order: Order) -> None:
    """In an order, too: nothing that is still to come is before it."""
    transport = await lost_end()
    async with serving(Gate(), "1m*3", concurrency=3, order=order, transport=transport) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert gate.started == [b"old"]


async def test_a_row_beyond_the_end_of_its_topic_replaces_no_new_record() -> None:
    """It is older, although its offset is not."""
    transport = await lost_end(b"other")
    async with serving(Gate(), "1m", concurrency=3, order=Order.LATEST, transport=transport) as (orders, gate):
        gate.let_all()
        await orders.send(b"new", key=b"a")
        await pass_time(orders, 120_000, 10_000)
        assert gate.done == [b"new"]


@pytest.mark.parametrize("ends", [True, False])
async def test_records_keep_their_order_where_the_topic_has_grown_over_a_row_of_before(*, ends: bool) -> None:
    """A record at the offset of that row is new. While the row waits, the new record gets none in its place."""
    transport = await lost_end(b"other", key=b"a" if ends else b"z")
    async with serving(Gate(), "1m*3", concurrency=3, order=Order.KEY, transport=transport) as (orders, gate):
        if ends:
            await orders.advance(60_000)
            await gate.end(orders, b"old")
        await orders.send(b"first", key=b"a")
        await gate.end(orders, b"first", BankDownError())
        await orders.advance(500)
        await orders.send(b"second", key=b"a")
        await orders.advance(1_000)
        assert gate.started == [b"old"] * ends + [b"first"]
        gate.let_all()
        await pass_time(orders, 400_000, 10_000)
        assert (sorted(gate.done), failures(orders), orders.waiting) == ([b"first", b"old", b"second"], [], {})

"""The group's offset is set back, and records come again."""

from __future__ import annotations

import json

import pytest
from doubles import DLQ, MAIN, BankDownError, Gate

from retryapp.core.control import Command, Verb
from retryapp.core.policy import RetryPolicy
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.ports import TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition

CONTROL = TopicPartition("app.orders.control", 0)
POLICY = RetryPolicy("1m*3", timeout="50s")


async def set_back() -> MemoryLaneTransport:
    """Return what a worker has left that has failed one record, done another and rejected a third: all come again."""
    gate = Gate()
    async with MemoryPartition(gate, POLICY, concurrency=3) as orders:
        await orders.send(b"waits", b"fine", b"dead")
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
        gate.let_all()
        await orders.to_rest()
        assert orders.waiting == {}
        assert [letter.value for letter in orders.records(DLQ)] == [b"dead"]


async def test_another_record_at_its_offset_runs() -> None:
    """The main topic has lost its end, and has others there since."""
    transport = await set_back()
    log = transport.broker.logs[MAIN]
    del log.entries[:]
    log.end = 0
    transport.clock.advance(1)
    transport.append(MAIN, b"", b"another")
    gate = Gate()
    async with MemoryPartition(gate, POLICY, concurrency=3, transport=transport):
        assert gate.started == [b"another"]


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
        events = [json.loads(event.value or b"{}") for event in orders.records("app.orders.events")]
        assert [event["refused"] for event in events if event["kind"] == "command"] == ["running"]
        gate.let(b"dead", Reject())
        gate.let(b"fine")
        await orders.advance(1_000)
        assert (await orders.command("replay", 2))["refused"] is None
        assert gate.started == [b"fine", b"dead", b"dead"]

"""What belongs to an ended session of the lane counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import MAIN, RETRY, Gate, Stubborn, down, fine, offsets, reopen

from retryapp.core.record import Record
from retryapp.engine import pool as engine_pool
from retryapp.testing import MemoryPartition, Step


async def test_outcomes_of_an_ended_session_are_ignored(stubborn: Stubborn) -> None:
    """A handler that ends late changes nothing; its record is read and delivered again."""
    async with MemoryPartition(stubborn, "5m", concurrency=2) as orders:
        try:
            await orders.send(b"a")
            await reopen(orders)
            assert (orders.lane.session, stubborn.started) == (2, [b"a", b"a"])
        finally:
            stubborn.over.set()
        await orders.settle()
        assert offsets(orders.records(RETRY.topic)) == [0]
        assert orders.waiting == {"5m": 1}


async def test_running_handlers_are_cancelled_when_their_session_ends() -> None:
    """And jobs that had not begun never begin."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=1) as orders:
        await orders.send(b"a", b"b")
        gate_of_release = orders.transport.pause(Step.PROVE)
        await reopen(orders)
        assert (gate.running, gate.started, orders.engine.in_flight) == ({}, [b"a"], 0)
        gate_of_release.set()
        await orders.settle()
        assert gate.started == [b"a", b"a"]


async def test_no_record_starts_where_the_group_may_have_given_it_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker was stopped or cut off with records at hand. It asks first, and reads on where it is still the owner."""
    gate, lapsed = Gate(), [False]
    async with MemoryPartition(gate, "5m", concurrency=1) as orders:
        monkeypatch.setattr(orders.engine, "station", replace(orders.engine.station, lapsed=lambda: lapsed[0]))
        await orders.send(b"a", b"b")
        lapsed[0] = True
        hearing = orders.transport.pause(Step.PROVE)
        gate.let(b"a")
        await orders.settle()
        assert (gate.started, orders.engine.in_flight) == ([b"a"], 0)
        assert "MembershipLapsedError" in str(orders.lane.last_error)
        lapsed[0] = False
        hearing.set()
        await orders.advance(200)
        gate.let(b"a")
        await orders.settle()
        assert gate.started == [b"a", b"a", b"b"]


async def test_records_of_an_ended_session_are_not_taken_in() -> None:
    """They were fetched before: they come again."""
    async with MemoryPartition(fine, "5m") as orders:
        old = orders.lane.session
        await reopen(orders)
        assert orders.lane.session == old + 1
        orders.engine.accept(MAIN, old, [Record("orders", 0, 0, 1, None, b"v")])
        assert orders.engine.in_flight == 0


async def test_a_fault_of_ours_in_a_delivery_neither_ends_the_pool_nor_skips_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lane opens again and reads the record again."""
    real, calls = engine_pool.deliver, list[int]()

    async def broken(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault of ours")
        return await real(*arguments)

    monkeypatch.setattr(engine_pool, "deliver", broken)
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"a")
        assert "a fault of ours" in str(orders.lane.last_error)
        await orders.advance(100)
        assert (len(calls), orders.waiting) == (2, {"5m": 1})


async def test_a_source_that_delivers_out_of_order_is_refused() -> None:
    """Nothing is committed past what it skipped."""
    async with MemoryPartition(Gate(), "5m") as orders:
        orders.engine.accept(MAIN, orders.lane.session, [Record("orders", 0, 5, 1, None, b"v")])
        with pytest.raises(ValueError, match="must arrive in order"):
            orders.engine.accept(MAIN, orders.lane.session, [Record("orders", 0, 5, 1, None, b"v")])

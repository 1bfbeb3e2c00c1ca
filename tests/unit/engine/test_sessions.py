"""Sessions of a partition: what belongs to an ended one counts for nothing, and how long an end may take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from doubles import MAIN, RETRY, BankDownError, Gate, Stubborn, down, fine, offsets, reopen, serving

from retryapp.core.record import Record
from retryapp.engine.delivery import pool as engine_pool
from retryapp.testing import MemoryPartition, Step


async def test_running_handlers_are_cancelled_when_their_session_ends() -> None:
    """And jobs that had not begun never begin."""
    async with serving(Gate(), "5m", b"a", b"b", concurrency=1) as (orders, gate):
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
        monkeypatch.setattr(orders.engine, "context", replace(orders.engine.context, lapsed=lambda: lapsed[0]))
        await orders.send(b"a", b"b")
        lapsed[0] = True
        hearing = orders.transport.pause(Step.PROVE)
        await gate.end(orders, b"a")
        assert (gate.started, orders.engine.in_flight) == ([b"a"], 0)
        assert "MembershipLapsedError" in str(orders.lane.last_error)
        lapsed[0] = False
        hearing.set()
        await orders.advance(200)
        await gate.end(orders, b"a")
        assert gate.started == [b"a", b"a", b"b"]


@pytest.mark.parametrize("due", [False, True])
async def test_no_record_starts_once_its_lane_is_to_close(monkeypatch: pytest.MonkeyPatch, due: bool) -> None:
    """Its last transaction may take long, and the worker be the owner after all; but no outcome would count."""
    gate, lapsed = Gate(), list[bool]()
    async with MemoryPartition(gate, "1s", concurrency=1) as orders:
        context = replace(orders.engine.context, lapsed=lambda: bool(lapsed and lapsed.pop()))
        monkeypatch.setattr(orders.engine, "context", context)
        await orders.send(b"a", b"b", *([] if due else [b"c", b"d"]))
        if due:
            gate.let(b"a", BankDownError("no"))
            await orders.advance(100)
        commit = orders.transport.pause(Step.COMMIT)
        gate.let(b"b" if due else b"a", BankDownError("no"))
        await orders.advance(100)
        assert commit.reached
        begun = list(gate.started)
        lapsed.append(True)
        if due:
            await orders.advance(1_000)
        else:
            gate.let(b"b")
        await orders.advance(100)
        assert (lapsed, gate.started) == ([], begun)
        gate.let_all()
        commit.set()
        await orders.to_rest()
        assert set(gate.done) == {*gate.started}


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
    real, calls = engine_pool.outcome_of, list[int]()

    def broken(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault of ours")
        return real(*arguments)

    monkeypatch.setattr(engine_pool, "outcome_of", broken)
    async with serving(down, "5m", b"a") as (orders, _):
        assert "a fault of ours" in str(orders.lane.last_error)
        await orders.advance(100)
        assert (len(calls), orders.waiting) == (2, {"5m": 1})


async def test_drain_waits_for_running_handlers_and_commits_their_outcomes() -> None:
    """It takes nothing new, and ends as soon as the last one is done."""
    async with serving(Gate(), "5m", concurrency=2) as (orders, gate):
        await orders.send(b"a", b"b", b"c")

        async def meanwhile() -> None:
            assert orders.engine.room(MAIN) == 0
            await orders.advance(9_000)
            gate.let(b"a")
            await gate.end(orders, b"b", BankDownError())

        await orders.finish(10.0, meanwhile)
        assert (gate.started, orders.transport.offsets[MAIN]) == ([b"a", b"b"], 2)
        assert offsets(orders.records(RETRY.topic)) == [1]
        assert orders.lane.state.value == "closed"


async def test_drain_gives_handlers_up_at_its_deadline() -> None:
    """They are cancelled and waited for; what they held is not committed."""
    async with serving(Gate(), "5m", b"a", b"b", concurrency=2) as (orders, gate):
        gate.let(b"a")

        async def meanwhile() -> None:
            await orders.advance(9_999)
            assert list(gate.running) == [b"b"]
            await orders.advance(1)
            assert gate.running == {}

        await orders.finish(10.0, meanwhile)
        assert orders.transport.offsets[MAIN] == 1
        assert orders.records(RETRY.topic) == []


async def test_nothing_fires_while_the_partition_drains() -> None:
    """The next owner does it."""
    async with serving(Gate(), "1s", b"a", b"slow", concurrency=2) as (orders, gate):
        await gate.end(orders, b"a", BankDownError())

        async def meanwhile() -> None:
            await orders.advance(5_000)
            gate.let(b"slow")

        await orders.finish(10.0, meanwhile)
        assert len(orders.records(RETRY.topic)) == 1
        assert orders.transport.offsets[MAIN] == 2


@pytest.mark.parametrize(("grace_s", "more_s"), [(25.0, 2.0), (1.0, 1.0)])
async def test_a_drain_takes_its_grace_once_and_little_more(stubborn: Stubborn, grace_s: float, more_s: float) -> None:
    """A handler that ignores its cancellation does not double the time that a stop takes."""
    async with serving(stubborn, "5m", b"a") as (orders, _):
        draining = asyncio.create_task(orders.engine.drain(grace_s))
        await orders.settle()
        await orders.advance(round(grace_s * 1000))
        assert not draining.done(), "given up, and waited for"
        await orders.advance(round(more_s * 1000))
        assert draining.done()


@pytest.mark.parametrize("due", [False, True])
async def test_a_record_never_runs_beside_a_former_run_of_itself(stubborn: Stubborn, due: bool) -> None:
    """That one ignores the end of its session, which others do not wait for; the record does, until it is given up."""
    stubborn.over.set()
    async with MemoryPartition(stubborn, "1s 1h", concurrency=2) as orders:
        if due:
            await orders.send(b"a")
            stubborn.started.clear()
        stubborn.over.clear()
        await (orders.advance(1_000) if due else orders.send(b"a"))
        assert stubborn.started == [b"a"]
        await reopen(orders)
        await orders.send(b"fine")
        await orders.advance(round(engine_pool.CANCEL_WAIT_S * 1000) - 200)
        assert stubborn.started == [b"a", b"fine"]
        await orders.advance(200)
        assert stubborn.started == [b"a", b"fine", b"a"]
        stubborn.over.set()
        await orders.settle()
        await orders.advance(5_000)
        assert (orders.waiting, orders.transport.offsets[MAIN]) == ({"1h": 1}, 2)

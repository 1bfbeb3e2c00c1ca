"""A clean end lets what runs alone end by itself."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, Stubborn
from suspected import beside, disk_rows, found, marks, names, rows_marks, with_rows

from retryapp.testing import MemoryPartition


async def test_a_record_that_runs_alone_does_so_until_it_has_ended_in_a_drain() -> None:
    """A death while another one runs would count against both; and nothing of it counts once it has an outcome."""
    first, second = Gate(), Gate()
    one = MemoryPartition(first, transport=found("s1:old@0", *names(2)))
    async with one, beside(one, second, "s1:old@0", b"other") as two:
        draining = asyncio.create_task(one.engine.drain(5.0))
        await one.settle()
        await two.settle()
        assert (list(first.running), list(second.running)) == ([b"0"], [])
        await first.end(one, b"0")
        await draining
        assert (first.started, marks(one)[-1], list(second.running)) == ([b"0"], (1, "r0"), [b"other"])


async def test_what_a_drain_gives_up_is_waited_for_no_longer() -> None:
    """Its handler has swallowed its cancellation, and another record may run alone."""
    first, second = Stubborn(), Gate()
    one = MemoryPartition(first, transport=found("s1:old@0", *names(2)))
    async with one, beside(one, second, "s1:old@0", b"other") as two:
        draining = asyncio.create_task(one.engine.drain(5.0))
        await one.settle()
        await one.advance(5_000)
        before = [*second.running]
        await one.advance(2_000)
        await draining
        await two.settle()
        first.over.set()
        assert (before, [*second.running]) == ([], [b"other"])


async def test_a_fault_of_ours_at_the_end_of_a_run_does_not_keep_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session ends, and another record may run alone."""
    first, second = Gate(), Gate()
    one = MemoryPartition(first, transport=found("s1:old@0", *names(2)))
    async with one, beside(one, second, "s1:old@0", b"other") as two:

        def fail(*_: Any) -> None:
            raise ValueError("odd")

        monkeypatch.setattr(one.engine.session, "take", fail)
        await first.end(one, b"0")
        await two.settle()
        assert (one.lane.session, [*second.running]) == (1, [b"other"])


async def test_a_row_that_ends_in_a_drain_is_held_responsible_for_nothing() -> None:
    """It has run alone, and has an outcome: a mark of rows stays until another is written."""
    gate, transport = await with_rows(1)
    ((key, _),) = disk_rows(transport)
    transport.broker.notes[MAIN] = f"r0:old ws2:old@{int.from_bytes(key[:8], 'big')}.0"
    async with MemoryPartition(gate, "1s 1h", transport=transport, max_crashes=4) as orders:
        assert rows_marks(transport)[-1] == "ws3"
        await orders.finish(meanwhile=partial(gate.end, orders, b"0", BankDownError()))
        assert rows_marks(transport)[-1] == "wr0"


async def test_a_record_that_runs_alone_does_so_until_its_cancelled_run_has_ended() -> None:
    """Its session is over; the handler takes its time."""
    first, second = Stubborn(), Gate()
    one = MemoryPartition(first, transport=found("s1:old@0", *names(2)))
    async with one, beside(one, second, "s1:old@0", b"other") as two:
        one.lane.fail(RuntimeError("a fault of ours"))
        await one.settle()
        await two.settle()
        before = [*second.running]
        first.over.set()
        await one.settle()
        await two.settle()
        assert (before, [*second.running]) == ([], [b"other"])

"""A clean end counts against no record, takes back no death before it, and lets what runs alone end by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, Refusing, Stubborn
from suspected import ENDS, Killer, beside, disk_rows, found, marks, names, rows_marks, with_rows

from retryapp.core.marks import split_note
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition


@asynccontextmanager
async def suspects(
    first: Callable[[bytes], object], second: Callable[[bytes], object]
) -> AsyncIterator[tuple[MemoryPartition, MemoryPartition]]:
    """Serve two partitions of a worker: a suspect of the first runs alone, and one of the second waits for it."""
    one = MemoryPartition(first, transport=found("s1:old@0", *names(2)))
    async with one, beside(one, second, "s1:old@0", b"other") as two:
        yield one, two


async def test_a_run_that_a_clean_end_cancels_counts_for_nothing_and_takes_no_death_back() -> None:
    """Two workers had died of it before; once a run has an outcome, they are forgotten."""
    gate, transport = Gate(), found("s2:old@0", *names(2))
    for _ in range(3):
        async with MemoryPartition(gate, transport=transport, max_crashes=4) as orders:
            assert (list(gate.running), marks(orders)[-1]) == ([b"0"], (0, "s3@0"))
            await orders.finish(1.0, meanwhile=partial(orders.advance, 2_000))
    async with MemoryPartition(gate, transport=transport, max_crashes=4) as orders:
        await gate.end(orders, b"0")
        assert (list(gate.running), marks(orders)[-1]) == ([b"1"], (1, "r0"))


async def test_a_clean_end_before_a_suspect_begins_leaves_its_mark() -> None:
    """What ended the worker before is not known yet."""
    gate, transport = Gate(), found("g4:old@0-4", *names(2))
    async with MemoryPartition(gate, transport=transport, max_in_flight=8) as orders:
        await orders.finish()
    assert (gate.started, transport.broker.notes[MAIN]) == ([], "g4:old@0-4")


async def test_a_clean_end_counts_for_nothing_while_an_outcome_is_refused() -> None:
    """Where an order is kept, nothing passes that, nor does what takes its mark back."""
    gate, transport = Gate(), found("s1:old@0", b"0")
    Refusing(transport, b"0")
    async with MemoryPartition(gate, transport=transport, order=Order.PARTITION) as orders:
        await gate.end(orders, b"0", Reject("never"))
        assert orders.lane.refusal is not None
        await orders.finish()
    assert split_note(transport.broker.notes[MAIN]).mark == "s2:-@0"


async def test_a_burial_that_is_refused_at_a_clean_end_is_due_in_the_next_life() -> None:
    """The mark is of those that died of it."""
    gate, transport = Gate(), found("s3:old@0", b"0")
    Refusing(transport, b"0")
    async with MemoryPartition(gate, transport=transport) as orders:
        assert orders.lane.refusal is not None
        await orders.finish()
    assert (gate.started, transport.broker.notes[MAIN]) == ([], "s3:old@0")


@pytest.mark.parametrize(
    ("order", "fails", "max_crashes"),
    [(Order.NONE, 0, 3), (Order.PARTITION, 0, 3), (Order.NONE, 1, 2)],
    ids=["first deliveries", "in order", "rows"],
)
@pytest.mark.parametrize("at", range(4))
async def test_deaths_add_up_whatever_ends_cleanly_between_them(
    at: int, order: Order, fails: int, max_crashes: int
) -> None:
    """The record takes long to kill, and its group rebalances all the while."""
    killer, transport, ends = Killer(b"%d" % at, fails), found("", *names(4)), 0
    options: Any = {"concurrency": 4, "max_in_flight": 4, "max_crashes": max_crashes, "order": order}
    while ends < 20 and await killer.ends_a_life(transport, ends, **options):
        ends += 1
        await killer.outlives(transport, **options)
        await killer.outlives(transport, **options)
    assert ends <= fails + ENDS + 1 + max_crashes
    async with MemoryPartition(killer, "1s 1h", transport=transport, **options) as orders:
        assert [(letter.reason, letter.origin.offset) for letter in orders.dead_letters] == [("crashed", at)]
        assert {*names(4)} - {*killer.done} == {killer.poison}
        assert orders.waiting == {}


async def test_a_record_that_runs_alone_does_so_until_it_has_ended_in_a_drain() -> None:
    """A death while another one runs would count against both; and nothing of it counts once it has an outcome."""
    first, second = Gate(), Gate()
    async with suspects(first, second) as (one, two):
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
    async with suspects(first, second) as (one, two):
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
    async with suspects(first, second) as (one, two):

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
    async with suspects(first, second) as (one, two):
        one.lane.fail(RuntimeError("a fault of ours"))
        await one.settle()
        await two.settle()
        before = [*second.running]
        first.over.set()
        await one.settle()
        await two.settle()
        assert (before, [*second.running]) == ([], [b"other"])

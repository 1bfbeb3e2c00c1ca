"""A paused handler: nothing begins, nothing is lost, and it stays so over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from doubles import MAIN, about, post, serving, tell

from retryapp import CircuitBreaker, RetryPolicy
from retryapp.core.circuit import MOST_SPELLS
from retryapp.core.control import Verb
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition


class Calls:
    """A handler whose records fail until it is told otherwise."""

    def __init__(self) -> None:
        self.failing = True
        self.begun: list[bytes] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self, value: bytes) -> None:
        self.begun.append(value)
        if self.gate is not None:
            await self.gate.wait()
        if self.failing:
            raise ValueError("down")


@asynccontextmanager
async def shut_behind_a_claim(
    shut: str, order: Order = Order.NONE
) -> AsyncIterator[tuple[MemoryPartition, Calls, asyncio.Event]]:
    """Run one where nothing may begin any more, by a pause or an outage, since its second row was claimed.

    That waits for the runner, which is busy with the first row until the event is set.
    """
    options: dict[str, Any] = {"circuit": CircuitBreaker(minimum_calls=3), "order": order, "concurrency": 1}
    async with serving(Calls(), "1s*3", b"one", **options) as (orders, calls):
        await orders.send(b"two", key=b"b")
        gate = calls.gate = asyncio.Event()
        await orders.advance(1_000)
        calls.gate = None
        if shut == "pause":
            await tell(orders, HandlerVerb.PAUSE)
        else:
            await orders.send(b"three", key=b"c")  # the third that fails
        yield orders, calls, gate


@pytest.mark.parametrize("order", list(Order))
async def test_nothing_begins_while_it_is_paused(order: Order) -> None:
    """Neither first deliveries nor retries; after it all do, once each."""
    async with serving(Calls(), "1s*3", b"one", key=b"a", order=order) as (orders, calls):
        told = await tell(orders, HandlerVerb.PAUSE, by="ann", why="migration")
        assert (told["refused"], told["after"]) == (None, "paused by ann: migration")
        calls.failing = False
        await orders.send(b"two", key=b"b")
        await orders.advance(60_000)
        assert calls.begun == [b"one"]
        await tell(orders, HandlerVerb.RESUME)
        await orders.to_rest()
        assert sorted(calls.begun) == [b"one", b"one", b"two"]


async def test_it_stays_paused_over_a_restart() -> None:
    """Of whichever worker, also one without the group's offsets."""
    calls = Calls()
    orders = MemoryPartition(calls, "1s*3")
    async with orders:
        await orders.send(b"one")
        await tell(orders, HandlerVerb.PAUSE)
    for forget in (False, True):
        if forget:
            orders.transport.broker.notes.clear()
        async with serving(calls, "1s*3", b"two", transport=orders.transport) as (orders, _):
            await orders.advance(60_000)
            assert calls.begun == [b"one"]
    async with MemoryPartition(calls, "1s*3", transport=orders.transport) as orders:
        calls.failing = False
        assert (await tell(orders, HandlerVerb.RESUME))["before"] == "paused"
        await orders.to_rest()
        assert sorted(calls.begun) == [b"one", b"one", b"two", b"two"]


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.usefixtures("slow_commands")
async def test_a_pause_that_came_while_no_worker_ran_holds_back_first_deliveries_too(order: Order) -> None:
    """They wait until the commands are obeyed that an opening finds, however long their reading takes."""
    async with serving(Calls(), "1s*3", order=order) as (orders, calls):
        await orders.send(b"one", key=b"a")
    post(orders, HandlerCommand(id="h", verb=HandlerVerb.PAUSE))
    orders.transport.append(MAIN, b"b", b"two")
    async with MemoryPartition(calls, "1s*3", order=order, transport=orders.transport) as orders:
        await orders.advance(60_000)
        assert calls.begun == [b"one"]
        calls.failing = False
        await tell(orders, HandlerVerb.RESUME)
        await orders.to_rest()
        assert sorted(calls.begun) == [b"one", b"one", b"two"]


async def test_a_pause_does_not_wait_for_a_command_before_it_that_waits_for_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records do not wait for letters."""
    calls, known = Calls(), asyncio.Event()
    async with MemoryPartition(calls, "1s*3") as orders:
        await orders.send(b"one")
    post(orders, about("c", Verb.REPLAY, 0), HandlerCommand(id="h", verb=HandlerVerb.PAUSE))
    orders.transport.append(MAIN, b"b", b"two")
    monkeypatch.setattr(type(orders.transport), "letters_here", property(lambda _lane: known.is_set()))
    async with MemoryPartition(calls, "1s*3", transport=orders.transport) as orders:
        await orders.advance(60_000)
        assert (calls.begun, orders.engine.in_flight) == ([b"one"], 0)
        known.set()
        await orders.settle()
        calls.failing = False
        await tell(orders, HandlerVerb.RESUME)
        await orders.to_rest()
        assert sorted(calls.begun) == [b"one", b"one", b"two"]


async def test_a_deadline_counts_neither_a_hold_nor_pauses_before_it_and_after_it() -> None:
    """Several, and one that the hold overlaps: what is left out for one is not counted again for another."""
    async with serving(Calls(), RetryPolicy("1s*3", max_elapsed="10s"), b"one") as (orders, calls):
        await tell(orders, HandlerVerb.PAUSE)
        await orders.advance(60_000)
        await orders.command("hold", 0)
        await orders.advance(60_000)
        await tell(orders, HandlerVerb.RESUME)
        await orders.advance(60_000)
        for _ in range(MOST_SPELLS - 1):
            await tell(orders, HandlerVerb.PAUSE)
            await orders.advance(5_000)
            await tell(orders, HandlerVerb.RESUME)
        assert calls.begun == [b"one"]
        await orders.command("release", 0)
        await orders.settle()
        assert (len(calls.begun), orders.dead_letters) == (2, [])


async def test_commands_about_records_are_obeyed_meanwhile() -> None:
    """What is retried now begins after the pause."""
    async with serving(Calls(), "1h*3", b"one", b"two") as (orders, calls):
        await tell(orders, HandlerVerb.PAUSE)
        assert (await orders.command("cancel", 0))["refused"] is None
        assert (await orders.command("retry-now", 1))["refused"] is None
        assert calls.begun == [b"one", b"two"]
        calls.failing = False
        await tell(orders, HandlerVerb.RESUME)
        await orders.settle()
        assert calls.begun == [b"one", b"two", b"two"]


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY, Order.LATEST])
@pytest.mark.parametrize(
    ("shut", "why"), [("pause", "deliveries are paused"), ("circuit", "an outage is on, which holds it back")]
)
@pytest.mark.parametrize(
    ("verb", "text", "runs"),
    [
        ("retry-now", "due now; {why}", 1),
        ("hold", "no attempt begins before it is released, or 7d have passed", 0),
        ("cancel", "it is dead, and not tried again", 0),
    ],
)
async def test_a_row_that_was_claimed_before_the_pause_waits_in_the_table(
    order: Order, verb: str, text: str, runs: int, shut: str, why: str
) -> None:
    """It had no runner yet: no command about it waits for its run, which may not begin for days."""
    async with shut_behind_a_claim(shut, order) as (orders, calls, gate):
        gate.set()
        await orders.settle()
        assert calls.begun == [b"one", b"two", b"one", *[b"three"] * (shut == "circuit")]
        told = await orders.command(verb, 1)
        assert (told["refused"], told["text"]) == (None, text.format(why=why))
        calls.failing = False
        await tell(orders, HandlerVerb.RESUME)
        await orders.advance(60_000)
        assert calls.begun[3:].count(b"two") == runs


@pytest.mark.parametrize("shut", ["pause", "circuit"])
async def test_a_record_that_is_cancelled_as_it_waits_for_a_runner_is_dead_at_once(shut: str) -> None:
    """Its handler is not called, so it need not wait for the resume, or the end of an outage."""
    async with shut_behind_a_claim(shut) as (orders, _, gate):
        assert (await orders.command("cancel", 1))["refused"] is None
        gate.set()
        await orders.settle()
        assert [(letter.origin.offset, letter.reason) for letter in orders.dead_letters] == [(1, "cancelled")]


async def test_paused_twice_is_paused_once() -> None:
    async with serving(Calls(), "1h*3") as (orders, calls):
        await tell(orders, HandlerVerb.RESUME)
        await tell(orders, HandlerVerb.PAUSE, why="first")
        assert (await tell(orders, HandlerVerb.PAUSE, why="second"))["after"] == "paused: first"
        await tell(orders, HandlerVerb.RESUME)
        await orders.send(b"one")
        assert calls.begun == [b"one"]


@pytest.mark.parametrize("circuit", [None, CircuitBreaker()], ids=["taken in", "let go by a circuit"])
async def test_what_runs_goes_on_and_what_waits_for_a_runner_does_not(circuit: CircuitBreaker | None) -> None:
    """First deliveries that were admitted and had not begun."""
    calls = Calls()
    calls.gate = asyncio.Event()
    calls.failing = False
    async with serving(calls, "1s*3", b"one", b"two", b"three", concurrency=1, circuit=circuit) as (orders, _):
        await tell(orders, HandlerVerb.PAUSE)
        calls.gate.set()
        await orders.settle()
        calls.gate.clear()
        await tell(orders, HandlerVerb.RESUME)
        assert calls.begun == [b"one", b"two"]
        await tell(orders, HandlerVerb.PAUSE)
        calls.gate.set()
        await orders.advance(60_000)
        assert calls.begun == [b"one", b"two"]
        await tell(orders, HandlerVerb.RESUME)
        await orders.to_rest()
        assert calls.begun == [b"one", b"two", b"three"]

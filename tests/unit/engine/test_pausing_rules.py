"""Rules that pause: the partition stops at a durable gate, its record keeps its place and spends no attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import events_of, resumed_before, serving, tell

from retryapp import Batch, CircuitBreaker, Defer, RetryPolicy, pausing
from retryapp.core.jobs import HandlerVerb
from retryapp.core.lifecycle import Commanded
from retryapp.core.traces import qualified_name
from retryapp.engine.handler.handler import Order
from retryapp.ports import Event
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step


class LedgerClosedError(Exception):
    """Somebody has to open it."""


POLICY = RetryPolicy("1s*3", on=[pausing(LedgerClosedError)])


class Calls:
    """A handler that cannot work before somebody has opened the ledger."""

    def __init__(self) -> None:
        self.closed = True
        self.begun: list[bytes] = []
        self.gates: dict[bytes, asyncio.Event] = {}

    async def __call__(self, value: bytes) -> None:
        self.begun.append(value)
        if value in self.gates:
            await self.gates[value].wait()
        if self.closed:
            raise LedgerClosedError("since noon, order 4711")


class Lists(Calls):
    """The same for lists."""

    async def __call__(self, values: list[bytes]) -> None:  # type: ignore[override]
        self.begun += values
        if self.closed:
            raise LedgerClosedError("since noon, order 4711")


async def go_on(orders: MemoryPartition) -> dict[str, Any]:
    return await tell(orders, HandlerVerb.RESUME)


def told(orders: MemoryPartition) -> list[Commanded]:
    """Return what events say of pauses by rules."""
    return [each for each in events_of(orders, Commanded) if not each.command]


@pytest.mark.parametrize("order", list(Order))
async def test_the_partition_waits_for_somebody_and_the_record_goes_first_with_its_attempts(order: Order) -> None:
    """Also where it fails at once again; others do not begin."""
    async with serving(Calls(), POLICY, b"one", b"two", key=b"a", order=order) as (orders, calls):
        for _ in range(6):  # more often than there are attempts
            await orders.advance(3_600_000)
            await go_on(orders)
        assert set(calls.begun) == ({b"one", b"two"} if order in (Order.NONE, Order.LATEST) else {b"one"})
        calls.closed, calls.begun = False, []
        await go_on(orders)
        await orders.to_rest()
        assert sorted(calls.begun) == ([b"two"] if order is Order.LATEST else [b"one", b"two"])
        assert orders.dead_letters == []
        assert order in (Order.NONE, Order.LATEST) or calls.begun[0] == b"one"


async def test_the_gate_says_which_record_and_why_loudly() -> None:
    """In an event, in the log, and to whoever asks."""
    async with serving(Calls(), POLICY, b"one") as (orders, _):
        (event,) = told(orders)
        name = qualified_name(LedgerClosedError)
        text = f"paused by rule pausing={name}: {name}: since noon, order <number>"
        assert (event.verb, event.text, event.after) == ("handler-pause", text, text)
        assert event.failure_id == "app/orders@kq8G0bTz/0/0"
        (seen,) = [each for each in orders.observer.seen if each.event is Event.PAUSED]
        assert (seen.failure_id, seen.message) == ("app/orders@kq8G0bTz/0/0", text)
        assert (await go_on(orders))["before"] == text


async def test_a_crash_before_the_gate_is_durable_has_the_record_fail_again() -> None:
    """And pause then."""
    calls = Calls()
    orders = MemoryPartition(calls, POLICY)
    async with orders:
        dying = orders.transport.pause(Step.COMMIT)
        await orders.send(b"one")
        assert dying.reached
    async with MemoryPartition(calls, POLICY, transport=orders.transport) as orders:
        await orders.settle()
        assert (calls.begun, len(told(orders))) == ([b"one", b"one"], 1)
        calls.closed = False
        await go_on(orders)
        await orders.to_rest()
        assert orders.dead_letters == []


@pytest.mark.parametrize("killed", ["", "at the look", "after the pause", "after the look", "after its place"])
async def test_a_resume_of_before_the_pause_does_not_end_it_whenever_its_worker_is_killed(killed: str) -> None:
    """The worker asks where the control topic ends after the pause is durable, and then writes that down."""
    kills: list[Any] = []

    class Closing(Calls):
        async def __call__(self, value: bytes) -> None:
            if not self.begun:
                kills.extend(resumed_before(orders, killed))
            await super().__call__(value)

    calls = Closing()
    orders = MemoryPartition(calls, POLICY)
    async with orders:
        await orders.send(b"one")
        assert all(kill.reached for kill in kills)
    async with MemoryPartition(calls, POLICY, transport=orders.transport) as orders:
        await orders.advance(60_000)
        assert (calls.begun, len(told(orders))) == ([b"one"], 1)
        assert [each.refused for each in events_of(orders, Commanded) if each.command == "early"] == ["changed"]
        calls.closed = False
        await go_on(orders)
        await orders.to_rest()
        assert (calls.begun, orders.dead_letters) == ([b"one", b"one"], [])


async def test_one_that_fails_between_a_resume_and_its_commit_pauses_again() -> None:
    """The end of the former pause does not end the new one."""
    calls = Calls()
    calls.gates[b"slow"] = asyncio.Event()
    async with serving(calls, POLICY, b"slow", b"one", concurrency=2) as (orders, _):
        assert len(told(orders)) == 1
        committing = orders.transport.pause(Step.COMMIT)
        with pytest.raises(AssertionError, match="no outcome"):
            await go_on(orders)
        calls.gates[b"slow"].set()
        await orders.settle()
        committing.set()
        await orders.settle()
        await orders.advance(60_000)
        assert (calls.begun, len(told(orders))) == ([b"slow", b"one"], 2)
        calls.closed = False
        await go_on(orders)
        await orders.to_rest()
        assert sorted(calls.begun) == [b"one", b"one", b"slow", b"slow"]


async def test_a_list_pauses_after_three_calls_that_fail_alike() -> None:
    """It is not taken apart down to each record."""
    async with serving(Lists(), POLICY, batch=Batch(size=100, wait="1s")) as (orders, calls):
        await orders.send(*(b"%02d" % n for n in range(64)))
        await orders.advance(1_000)
        assert (len(calls.begun), len(told(orders)), dict(orders.waiting)) == (64 + 2 * 32 + 2 * 16, 1, {"1s": 64})
        calls.closed, calls.begun = False, []
        await go_on(orders)
        await orders.to_rest()
        assert sorted(calls.begun) == [b"%02d" % n for n in range(64)]


async def test_it_says_nothing_about_an_outage_and_is_not_tried_in_place() -> None:
    """A circuit counts what may go away; hot tries are for the same."""
    calls = Calls()
    policy = RetryPolicy("1s*3", on=[pausing(LedgerClosedError)], hot="50ms*3")
    breaker = CircuitBreaker(minimum_calls=2)
    async with serving(calls, policy, b"one", b"two", b"three", b"four", circuit=breaker, concurrency=4) as (orders, _):
        assert calls.begun == [b"one"]
        for _ in range(4):
            await orders.advance(1_000)
            await go_on(orders)
        circuit = orders.engine.context.pace.circuit
        assert circuit is not None
        assert (circuit.closed, len(calls.begun), len(told(orders))) == (True, 5, 5)


async def test_a_record_that_pauses_can_be_cancelled_meanwhile() -> None:
    """Where nobody can make it succeed."""
    async with serving(Calls(), POLICY, b"one") as (orders, calls):
        assert (await orders.command("cancel", 0))["refused"] is None
        calls.closed = False
        await go_on(orders)
        await orders.send(b"two")
        assert (calls.begun, [letter.reason for letter in orders.dead_letters]) == ([b"one", b"two"], ["cancelled"])


async def defer(_value: bytes) -> None:
    """Wait for an event that never comes."""
    raise Defer("1s")


async def test_a_wait_that_nobody_ends_pauses_by_a_rule_for_time_outs_and_spends_no_attempt() -> None:
    """Else it would neither pause nor ever end: its attempts would exceed those of the policy."""
    async with serving(defer, RetryPolicy("1s*2", on=[pausing(TimeoutError)]), b"one") as (orders, _):
        for paused in range(1, 5):  # more often than there are attempts
            await orders.advance(1_000)  # it is delivered
            await orders.advance(1_000)
            assert (orders.engine.context.pace.paused, len(told(orders))) == (True, paused)
            assert {each.attempt for each in orders.observer.seen if each.event is Event.FAILED} == {1}
            await go_on(orders)
        assert orders.dead_letters == []

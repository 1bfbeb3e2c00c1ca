"""Holds: no attempt begins before somebody releases the record, or the deadline has passed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from doubles import events_of, rows, serving

from retryapp import RetryPolicy
from retryapp.core.control import HOLD_MS
from retryapp.core.lifecycle import Commanded
from retryapp.core.rows import OPERATOR, SEQUENCE
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition

DAY_MS = 86_400_000


class Calls:
    """Fails at first attempts, and for as long as it is told to; waits where it is told to."""

    def __init__(self, *, failing: bool = False) -> None:
        self.failing = failing
        self.gate = asyncio.Event()
        self.gate.set()
        self.seen: list[tuple[bytes, int]] = []

    async def __call__(self, value: bytes, delivery: Any) -> None:
        self.seen.append((value, delivery.attempt))
        await self.gate.wait()
        if self.failing or delivery.attempt == 1:
            raise ValueError("down")


def holds(partition: MemoryPartition) -> list[int]:
    return [row.hold for row in rows(partition)]


def told(partition: MemoryPartition) -> list[tuple[str, str]]:
    """Return verb and sender of each command event."""
    return [(event.verb, event.command) for event in events_of(partition, Commanded)]


async def test_a_held_record_waits_until_it_is_released_and_then_for_its_own_time() -> None:
    """Over a restart; without a second hold a release is refused."""
    async with serving(Calls(), "1h*3", b"one", b"two") as (orders, calls):
        assert (await orders.command("release", 0))["refused"] == "not-held"
        assert (await orders.command("hold", 0, by="ann"))["refused"] is None
        assert holds(orders) == [0, OPERATOR]
    async with MemoryPartition(calls, "1h*3", transport=orders.transport) as orders:
        await orders.command("release", 0)
        await orders.advance(3_599_999)
        assert calls.seen == [(b"one", 1), (b"two", 1)]
        await orders.command("hold", 0)
        await orders.advance(DAY_MS)
        assert calls.seen[2:] == [(b"two", 2)]
        assert (await orders.command("release", 0))["refused"] is None
        assert calls.seen[3:] == [(b"one", 2)]
        assert not orders.waiting


async def test_a_hold_that_nobody_ends_is_released_loudly_at_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """With an event and a warning; the first of two deadlines does not count."""
    async with serving(Calls(), "1h*3", b"one") as (orders, calls):
        await orders.command("hold", 0, hold_ms=60_000)
        await orders.command("hold", 0)
        with caplog.at_level(logging.WARNING, "retryapp.events"):
            await orders.advance(HOLD_MS - 1)
            assert (len(calls.seen), caplog.messages) == (1, [])
            await orders.advance(1)
        assert calls.seen == [(b"one", 1), (b"one", 2)]
        assert caplog.messages == ["retryapp.hold_expired"]
        assert [verb for verb, sender in told(orders) if not sender] == ["release"]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_record_that_runs_is_held_after_its_run(crash: bool) -> None:
    """Its handler is never interrupted; after a crash its next attempt does not begin. A release takes that back."""
    async with serving(Calls(failing=True), "1s*9", b"one") as (orders, calls):
        calls.gate.clear()
        await orders.advance(1_000)
        assert (await orders.command("hold", 0))["after"] == "holding"
        assert (await orders.command("release", 0))["after"] == "running"
        assert (await orders.command("release", 0))["refused"] == "not-held"
        assert (await orders.command("hold", 0))["after"] == "holding"
        if not crash:
            calls.gate.set()
            await orders.settle()
    calls.gate.set()
    async with MemoryPartition(calls, "1s*9", transport=orders.transport) as orders:
        await orders.advance(DAY_MS)
        assert (calls.seen, holds(orders)) == ([(b"one", 1), (b"one", 2)], [OPERATOR])
        calls.failing = False
        await orders.command("release", 0)
        assert calls.seen[2:] == [(b"one", 2 if crash else 3)]
        assert not orders.waiting


@pytest.mark.parametrize("crash", [False, True])
async def test_a_cancel_goes_before_a_hold(crash: bool) -> None:
    """Of a record that runs; also if its worker dies then."""
    async with serving(Calls(failing=True), "1s*9", b"one") as (orders, calls):
        calls.gate.clear()
        await orders.advance(1_000)
        for verb in ("hold", "cancel"):
            assert (await orders.command(verb, 0))["refused"] is None
        if not crash:
            calls.gate.set()
            await orders.settle()
    calls.gate.set()
    async with MemoryPartition(calls, "1s*9", transport=orders.transport) as orders:
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"]
        assert len(calls.seen) == 2


@pytest.mark.parametrize("verbs", [("hold", "cancel"), ("cancel", "hold")])
async def test_a_hold_of_a_cancelled_run_is_refused_and_one_before_that_is_over(verbs: tuple[str, str]) -> None:
    """Else it would come back once the letter is replayed."""
    async with serving(Calls(failing=True), "1s*9", b"one") as (orders, calls):
        calls.gate.clear()
        await orders.advance(1_000)
        refused = [(await orders.command(verb, 0))["refused"] for verb in verbs]
        assert refused == [None, "not-waiting" if verbs[1] == "hold" else None]
        calls.gate.set()
        await orders.settle()
        await orders.command("replay", 0)
        assert (holds(orders), [letter.reason for letter in orders.dead_letters]) == ([0], ["cancelled"])


async def test_success_goes_before_a_hold() -> None:
    async with serving(Calls(), "1s*9", b"one") as (orders, calls):
        calls.gate.clear()
        await orders.advance(1_000)
        await orders.command("hold", 0)
        calls.gate.set()
        await orders.settle()
        assert not orders.waiting


async def test_retry_now_and_cancel_of_a_held_record() -> None:
    """The one sets the time for after the release, and says so; the other ends it."""
    async with serving(Calls(), "1h*3", b"one", b"two") as (orders, calls):
        for offset in (0, 1):
            await orders.command("hold", offset)
        assert "held until" in (await orders.command("retry-now", 0))["text"]
        assert (await orders.command("cancel", 1))["after"] == "dead"
        assert len(calls.seen) == 2
        await orders.command("release", 0)
        assert calls.seen[2:] == [(b"one", 2)]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_hold_does_not_count_against_the_time_of_the_policy(times: int) -> None:
    """Else a record that was held for long, or held again before that has ended, would die of the next failure."""
    async with serving(Calls(failing=True), RetryPolicy("1m*9", max_elapsed="5m"), b"one") as (orders, calls):
        for _ in range(times):
            await orders.command("hold", 0)
            await orders.advance(DAY_MS)
        await orders.command("release", 0)
        assert (len(calls.seen), len(orders.dead_letters)) == (2, 0)
        await orders.to_rest()
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.attempt > 5) == ("expired", True)


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
async def test_a_held_head_holds_those_behind_it(order: Order) -> None:
    """Also when it is held before it has failed again, and over a restart."""
    async with serving(Calls(), "1s*3", b"one", key=b"k", order=order) as (orders, calls):
        await orders.command("hold", 0)
        await orders.send(b"two", key=b"k")
        await orders.advance(DAY_MS)
    async with MemoryPartition(calls, "1s*3", order=order, transport=orders.transport) as orders:
        await orders.advance(DAY_MS)
        assert calls.seen == [(b"one", 1)]
        await orders.command("release", 0)
        await orders.to_rest()
        assert calls.seen[1:] == [(b"one", 2), (b"two", 1), (b"two", 2)]


@pytest.mark.parametrize("late", [False, True])
async def test_a_follower_is_held_before_its_first_attempt(late: bool) -> None:
    """Its turn may come before its release, or after it; others behind it wait as well."""
    async with serving(Calls(), "1s*3", b"one", b"two", b"three", key=b"k", order=Order.KEY) as (orders, calls):
        assert holds(orders) == [0, SEQUENCE, SEQUENCE]
        assert (await orders.command("hold", 1, hold_ms=DAY_MS))["refused"] is None
        assert sorted(holds(orders)) == [0, SEQUENCE, SEQUENCE | OPERATOR]
        if late:
            await orders.advance(DAY_MS - 1)
            assert calls.seen == [(b"one", 1), (b"one", 2)]
            await orders.advance(1)
        else:
            await orders.command("release", 1)
        await orders.to_rest()
        assert [value for value, attempt in calls.seen if attempt == 2] == [b"one", b"two", b"three"]
        assert not orders.waiting


async def test_a_follower_that_was_held_runs_when_the_handler_has_no_order_any_more() -> None:
    """Like the others."""
    async with serving(Calls(), "1s*3", b"one", b"two", key=b"k", order=Order.KEY) as (orders, calls):
        await orders.command("hold", 1, hold_ms=DAY_MS)
    async with MemoryPartition(calls, "1s*3", transport=orders.transport) as orders:
        await orders.to_rest()
        assert calls.seen[1:] == [(b"one", 2), (b"two", 1), (b"two", 2)]


async def test_a_release_names_earlier_records_of_its_key_while_there_are_some() -> None:
    """A follower that was held is the first of its key once the record before it has ended: then it runs at once."""
    async with serving(Calls(failing=True), "1h*1", order=Order.KEY) as (orders, calls):
        await orders.send(b"one", b"two", b"three", key=b"k")
        await orders.command("hold", 2)
        assert (await orders.command("release", 2))["text"] == "due now; it runs after the earlier records of its key"
        await orders.command("hold", 1)
        await orders.command("cancel", 0)
        assert (await orders.command("release", 1))["text"] == "due now"
        assert calls.seen == [(b"one", 1), (b"two", 1)]

"""What stops behind a dead record, and what ends the stop (``on_dead="hold"``)."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import Any

import pytest
from doubles import committed, damage, events_of, held, reopen, rows, serving

from retryapp.core.holding import Holding
from retryapp.core.lifecycle import Commanded
from retryapp.core.rows import STOPPED
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step

HOLD = Holding(on_dead="hold")
DAY_MS = 86_400_000


class Bad:
    """Rejects some values."""

    def __init__(self, *bad: bytes) -> None:
        self.bad = {*bad}
        self.seen: list[bytes] = []

    async def __call__(self, value: bytes) -> None:
        """Note the call."""
        self.seen.append(value)
        if value in self.bad:
            raise Reject("wrong")


def partition(calls: Bad, order: Order = Order.KEY, **more: Any) -> MemoryPartition:
    """Return a partition whose sequences stop."""
    return MemoryPartition(calls, order=order, **{"holding": HOLD, **more})


async def test_an_opening_reads_stops_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read once more, all in one go, many of them held the event loop up."""
    async with serving(Bad(b"1"), "1s", order=Order.KEY, holding=HOLD) as (orders, calls):
        for number in range(5):
            await orders.send(b"1", key=b"%d" % number)
        assert orders.waiting == {"stopped": 5}
    monkeypatch.delattr("retryapp.engine.partition.stops.decode_row")
    async with partition(calls, transport=orders.transport) as orders:
        await orders.send(b"2", key=b"0")
        assert (orders.waiting, orders.lane.last_error) == ({"stopped": 5, "held": 1}, None)


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
@pytest.mark.parametrize("lost", [False, True])
async def test_behind_a_dead_record_nothing_begins_until_it_is_replayed(order: Order, lost: bool) -> None:
    """Over sessions and lives, with and without its store; the record goes first then."""
    async with serving(Bad(b"1"), "1s 10s", b"1", b"2", b"3", key=b"a", order=order, holding=HOLD) as (orders, calls):
        await reopen(orders)
        await orders.send(b"b" if order is Order.KEY else b"4", key=b"b")
        await orders.advance(DAY_MS)
        assert calls.seen == [b"1", b"b"] if order is Order.KEY else [b"1"]
        assert len(orders.dead_letters) == 1
    if lost:
        orders.transport.lose_store()
    async with partition(calls, order, transport=orders.transport) as orders:
        await orders.advance(DAY_MS)
        calls.bad.clear()
        calls.seen.clear()
        assert (await orders.command("replay", 0))["refused"] is None
        await orders.to_rest()
        assert calls.seen[:3] == [b"1", b"2", b"3"]
        assert not orders.waiting


@pytest.mark.parametrize("verb", ["release", "discard"])
async def test_a_sequence_goes_on_without_its_dead_record(verb: str) -> None:
    """Once, and the record stays dead; other commands about it are refused."""
    calls = Bad(b"1")
    async with partition(calls) as orders:
        await orders.send(b"1", b"2", b"3", key=b"a")
        for other in ("retry-now", "cancel", "hold"):
            answer = await orders.command(other, 0)
            assert (answer["refused"], calls.seen) == ("not-waiting", [b"1"])
        assert (await orders.command(verb, 0))["refused"] is None
        assert (calls.seen, orders.waiting, len(orders.dead_letters)) == ([b"1", b"2", b"3"], {}, 1)
        assert (await orders.command("release", 0))["refused"] == "not-waiting"
        if verb == "discard":
            await orders.command("restore", 0)
        calls.bad.clear()
        assert (await orders.command("replay", 0))["refused"] is None
        await orders.send(b"4", key=b"a")
        assert calls.seen == [b"1", b"2", b"3", b"1", b"4"]


async def test_a_replayed_record_that_dies_again_stops_again() -> None:
    """As one that dies at its last attempt, one that was held before, and one that ends its workers."""
    calls = Bad(b"1", b"3")
    async with partition(calls) as orders:
        await orders.send(b"1", b"2", b"3", b"4", key=b"a")
        await orders.command("replay", 0)
        assert calls.seen == [b"1", b"1"]
        await orders.command("release", 0)
        assert calls.seen[2:] == [b"2", b"3"]
        assert [(row.hold == STOPPED, row.value) for row in rows(orders)] == [(True, b""), (False, b"4")]
        assert (orders.waiting, held(orders), committed(orders)) == ({"stopped": 1, "held": 1}, 1, 4)


async def test_what_somebody_has_cancelled_stops_nothing() -> None:
    """While it waits, and while it runs; nor does a record without a key."""

    async def fail(value: bytes) -> None:
        seen.append(value)
        if value != b"2":
            raise ValueError("down")

    seen: list[bytes] = []
    async with serving(fail, "1h*3", b"1", b"2", key=b"a", order=Order.KEY, holding=HOLD) as (orders, _):
        await orders.command("cancel", 0)
        assert (seen, orders.waiting) == ([b"1", b"2"], {})
    async with serving(Bad(b"1"), "1s 10s", b"1", b"2", order=Order.KEY, holding=HOLD) as (orders, calls):
        assert (calls.seen, orders.waiting) == ([b"1", b"2"], {})


@pytest.mark.parametrize("order", [Order.KEY, Order.NONE, Order.LATEST, Order.PARTITION])
async def test_a_handler_that_does_not_hold_any_more_lets_stopped_sequences_go(order: Order) -> None:
    """At its first opening, with an event, whatever order it keeps."""
    async with serving(Bad(b"1"), "1s 10s", order=Order.KEY, holding=HOLD) as (orders, calls):
        await orders.send(b"1", b"2", b"3", key=b"a")
    async with partition(calls, order, holding=Holding(), transport=orders.transport) as orders:
        await orders.advance(60_000)
        assert calls.seen == ([b"1", b"3"] if order is Order.LATEST else [b"1", b"2", b"3"])
        assert orders.waiting == {}
        (told,) = events_of(orders, Commanded)
        assert (told.verb, told.command, told.after) == ("release", "", "dead")


async def test_a_damaged_stop_that_holds_nothing_any_more_goes_with_its_letter() -> None:
    """It ends no lane; where it is to hold, its partition is paused (test_unread_rows.py)."""
    async with serving(Bad(b"1"), "1s 10s", b"1", b"2", key=b"a", order=Order.KEY, holding=HOLD) as (orders, calls):
        damage(orders)
    async with partition(calls, holding=Holding(), transport=orders.transport) as orders:
        assert (calls.seen, orders.waiting) == ([b"1", b"2"], {"?": 1})
        assert (await orders.command("discard", 0))["refused"] is None
        assert orders.waiting == {}


@pytest.mark.parametrize("verb", ["replay", "release", "discard"])
@pytest.mark.parametrize("durable", [False, True])
async def test_at_each_commit_a_kill_neither_forgets_nor_doubles_a_stop(verb: str, durable: bool) -> None:
    """Before the commit has reached the broker, and after; the store is lost, too."""
    for after in range(20):
        calls, transport, lives = Bad(b"1"), MemoryLaneTransport(), list[list[bytes]]()
        dying = transport.pause(Step.COMMIT, after=after, durable=durable)
        for life in range(3):
            lives.append(calls.seen)
            calls.seen = []
            async with partition(calls, transport=transport) as orders:
                if life == 0:
                    await orders.send(b"1", b"2", b"3", key=b"a")
                await orders.advance(1_000)
                if orders.waiting:
                    assert {*chain(*lives, calls.seen)} == {b"1"}
                    assert orders.waiting == {"stopped": 1, "held": 2}
                    calls.bad.clear()
                    with suppress(AssertionError):  # the worker is to die before it answers
                        await orders.command(verb, 0)
                await orders.advance(1_000)
                assert calls.seen == sorted(calls.seen)
            transport.lose_store()
        assert (orders.waiting, len(orders.dead_letters)) == ({}, 1), after
        assert {*chain(*lives, calls.seen)} == {b"1", b"2", b"3"}
        if not dying.reached:
            assert after > 3
            return

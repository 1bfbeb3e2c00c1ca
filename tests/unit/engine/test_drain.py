"""How a partition ends: what it waits for, what it gives up, and how long it may take."""

from __future__ import annotations

import asyncio

import pytest
from doubles import MAIN, REDELIVERY, RETRY, BankDownError, Gate, Stubborn, offsets

from retryapp.testing import MemoryPartition


async def test_drain_waits_for_running_handlers_and_commits_their_outcomes() -> None:
    """It takes nothing new, and ends as soon as the last one is done."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=2) as orders:
        await orders.send(b"a", b"b", b"c")

        async def meanwhile() -> None:
            assert orders.engine.room(MAIN) == 0
            await orders.advance(9_000)
            gate.let(b"a")
            gate.let(b"b", BankDownError())
            await orders.settle()

        await orders.finish(10.0, meanwhile)
        assert (gate.started, orders.transport.offsets[MAIN]) == ([b"a", b"b"], 2)
        assert offsets(orders.records(RETRY.topic)) == [1]
        assert orders.lane.state.value == "closed"


async def test_drain_gives_handlers_up_at_its_deadline() -> None:
    """They are cancelled and waited for; what they held is not committed."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=2) as orders:
        await orders.send(b"a", b"b")
        gate.let(b"a")

        async def meanwhile() -> None:
            await orders.advance(9_999)
            assert list(gate.running) == [b"b"]
            await orders.advance(1)
            assert gate.running == {}

        await orders.finish(10.0, meanwhile)
        assert orders.transport.offsets[MAIN] == 1
        assert orders.records(RETRY.topic) == []


async def test_drain_does_not_wait_for_ever_for_a_handler_that_will_not_stop(stubborn: Stubborn) -> None:
    """The group must not wait for it; its outcome is ignored."""
    async with MemoryPartition(stubborn, "5m") as orders:

        async def meanwhile() -> None:
            await orders.advance(10_000)
            await orders.advance(10_000)

        try:
            await orders.send(b"a")
            await asyncio.wait_for(orders.finish(10.0, meanwhile), 60)
        finally:
            stubborn.over.set()
        await orders.settle()
        assert (orders.transport.offsets[MAIN], orders.records(RETRY.topic)) == (0, [])


async def test_nothing_fires_while_the_partition_drains() -> None:
    """The next owner does it."""
    gate = Gate()
    async with MemoryPartition(gate, "1s", concurrency=2) as orders:
        await orders.send(b"a", b"slow")
        gate.let(b"a", BankDownError())
        await orders.settle()

        async def meanwhile() -> None:
            await orders.advance(5_000)
            gate.let(b"slow")

        await orders.finish(10.0, meanwhile)
        assert orders.records(REDELIVERY.topic) == []
        assert orders.transport.offsets[MAIN] == 2


@pytest.mark.parametrize(("grace_s", "more_s"), [(25.0, 2.0), (1.0, 1.0)])
async def test_a_drain_takes_its_grace_once_and_little_more(grace_s: float, more_s: float) -> None:
    """A handler that ignores its cancellation does not double the time that a stop takes."""
    released = asyncio.Event()

    async def stubborn(_value: bytes) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with MemoryPartition(stubborn, "5m") as orders:
        await orders.send(b"a")
        try:
            draining = asyncio.create_task(orders.engine.drain(grace_s))
            await orders.settle()
            await orders.advance(round(grace_s * 1000))
            assert not draining.done(), "given up, and waited for"
            await orders.advance(round(more_s * 1000))
            assert draining.done()
        finally:  # or the event loop would never end
            released.set()

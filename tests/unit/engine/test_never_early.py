"""No attempt starts before its due time, whatever the clocks do."""

from __future__ import annotations

import asyncio

import pytest
from deliver_once import deliver_once
from doubles import REDELIVERY, BankDownError, again, down, failing, make_record, make_station, settle, the

from retryapp.engine.run import Run, RunAbortedError
from retryapp.testing import MemoryPartition, VirtualClock


async def test_a_redelivery_that_comes_too_soon_waits_for_its_due_time(clock: VirtualClock) -> None:
    """Another worker's clock may run ahead of ours."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError()), "10s"), make_record()))
    started: list[int] = []

    async def handler(_value: bytes) -> None:
        started.append(clock.wall_ms())

    due_ms = clock.wall_ms() + 10_000
    delivery = asyncio.create_task(deliver_once(make_station(handler, "10s"), again(out)))
    for ms in (0, 9_999):
        clock.advance(ms)
        await settle()
        assert started == []
    clock.advance(1)
    await delivery
    assert started == [due_ms]


async def test_a_wall_clock_that_is_set_back_while_it_waits_makes_it_wait_on(clock: VirtualClock) -> None:
    """The due time is looked at again after the wait."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError()), "10s"), make_record()))
    started: list[int] = []

    async def handler(_value: bytes) -> None:
        started.append(clock.wall_ms())

    delivery = asyncio.create_task(deliver_once(make_station(handler, "10s"), again(out)))
    await settle()
    clock.jump_wall(-5_000)
    clock.advance(10_000)
    await settle()
    assert started == []
    clock.advance(5_000)
    await delivery
    assert len(started) == 1


async def test_waiting_for_the_due_time_can_be_given_up() -> None:
    """A record that is due in a year must not hold up a rebalance, and its handler must not start."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError()), "10s"), make_record()))
    calls: list[object] = []

    async def handler(value: bytes) -> None:
        calls.append(value)

    runs: list[Run] = []
    delivery = asyncio.create_task(deliver_once(make_station(handler, "10s"), again(out), on_run=runs.append))
    await settle()
    runs[0].abort()
    await settle()
    assert delivery.done()
    with pytest.raises(RunAbortedError):
        await delivery
    assert calls == []


async def test_nothing_fires_by_a_clock_that_is_doubted() -> None:
    """Late is better than early; it goes on by itself once the clock is trusted."""
    clock = VirtualClock()
    async with MemoryPartition(down, "1s 1h", clock=clock) as orders:
        await orders.send(b"a")
        clock.trusted = False
        await orders.advance(500)
        clock.jump_wall(7_200_000)
        for _ in range(8):
            await orders.advance(250)
        assert not orders.records(REDELIVERY.topic)
        clock.jump_wall(-7_200_000)
        clock.trusted = True
        await orders.advance(250)
        assert len(orders.records(REDELIVERY.topic)) == 1

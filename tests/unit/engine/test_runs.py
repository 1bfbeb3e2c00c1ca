"""Runs of handlers: whatever they do is a failure of their record, and never costs a runner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import Owner, crowd, deliver_once, failing, make_context, make_record, settle, the

from retryapp.core.record import Record
from retryapp.engine.delivery.pool import BURST, DeliveryPool
from retryapp.engine.delivery.run import Run, RunAbortedError
from retryapp.engine.lane.turn import Turn
from retryapp.testing import MemoryPartition, VirtualClock


class TextExitsError(Exception):
    """Its text ends programs."""

    def __str__(self) -> str:
        """End the program."""
        raise SystemExit(3)


class HiddenCauseError(Exception):
    """Its cause cannot be looked at."""

    @property
    def __cause__(self) -> BaseException | None:
        """Cancel whoever looks."""
        raise asyncio.CancelledError


class NamelessType(type):
    """A type whose name cannot be looked at."""

    def __getattribute__(cls, name: str) -> Any:
        """Interrupt whoever asks for the name."""
        if name == "__qualname__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=NamelessType):
    """Of such a type."""


@pytest.mark.parametrize(
    "error", [TextExitsError(), HiddenCauseError(), NamelessError()], ids=["text", "cause", "type"]
)
async def test_an_error_that_cannot_be_looked_at_is_a_failure_of_the_record(error: BaseException) -> None:
    """Its own code runs when it is judged: that must neither end the worker nor be met again for ever."""
    out, metadata = the(await deliver_once(make_context(failing(error)), make_record()))
    assert (out.topic, metadata.attempt) == ("app.orders.retry", 1)
    assert metadata.error_type.endswith("UnprintableError")


async def test_a_handler_that_leaves_a_cancellation_behind_does_not_hit_the_worker() -> None:
    """It asks for its own cancellation and returns: that was its last await."""

    async def handler(_value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def worker() -> Turn:
        turn = await deliver_once(make_context(handler), make_record())
        await asyncio.sleep(0)
        return turn

    assert (await asyncio.create_task(worker())).next_offset == 43


@pytest.mark.parametrize("until", ["its handler ran", "it was taken", "an orphan has ended"])
async def test_a_run_that_is_given_up_has_no_outcome(until: str) -> None:
    """The handler is cancelled, or never called; whatever it then does counts for nothing, and nothing stays behind."""
    calls: list[bytes] = []

    async def stubborn(value: bytes) -> None:
        calls.append(value)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    context, record, runs = make_context(stubborn), make_record(), list[Run]()
    if until == "an orphan has ended":
        crowd(context.handler.orphans)
    delivery = asyncio.create_task(deliver_once(context, record, on_run=runs.append))
    await asyncio.sleep(0) if until == "it was taken" else await settle()
    assert runs[0].begun is (until == "its handler ran")
    runs[0].abort()
    await settle()
    assert delivery.done()
    with pytest.raises(RunAbortedError):
        await delivery
    assert (len(calls), context.handler.orphans.waiting) == (until == "its handler ran", 0)


async def test_a_task_that_is_cancelled_after_its_handler_spares_the_runner() -> None:
    """A library kept the task of a handler that has ended."""
    kept: list[asyncio.Task[Any]] = []
    seen: list[bytes] = []

    async def handler(value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        kept.append(task)
        seen.append(value)

    async with MemoryPartition(handler, "5m") as orders:
        await orders.send(b"a")
        for _ in range(3):
            kept[-1].cancel()
            await orders.settle()
        await orders.send(b"b")
        assert (seen, orders.waiting) == ([b"a", b"b"], {})
        assert kept[0] is kept[1], "the same runner"


async def test_a_late_cancellation_that_hits_another_record_is_that_ones_failure() -> None:
    """It is tried again; nothing else is lost."""
    kept: list[asyncio.Task[Any]] = []
    gate = asyncio.Event()

    async def handler(value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        kept.append(task)
        if value == b"b":
            await gate.wait()

    async with MemoryPartition(handler, "5m") as orders:
        await orders.send(b"a", b"b", b"c")
        kept[0].cancel()
        await orders.settle()
        assert (orders.waiting, len(kept)) == ({"5m": 1}, 3)
        gate.set()
        await orders.advance(5 * 60_000)
        assert (orders.waiting, orders.dead_letters) == ({}, [])


async def test_handlers_that_never_wait_leave_room_for_others() -> None:
    """Not more than a burst of them runs in one go."""
    ran = 0
    longest = 0
    since = 0

    async def handler(_value: bytes) -> None:
        nonlocal ran, since, longest
        ran += 1
        since += 1
        longest = max(longest, since)

    async def other() -> None:
        nonlocal since
        while True:
            since = 0
            await asyncio.sleep(0)

    async with MemoryPartition(handler, "5m") as orders:
        ticking = asyncio.create_task(other())
        await orders.send(*[b"v"] * (10 * BURST))
        await orders.until(lambda: ran == 10 * BURST)
        ticking.cancel()
        assert longest <= 2 * BURST


async def test_a_run_that_is_told_to_stop_while_it_ends_costs_no_runner() -> None:
    """Its runner goes on with other records: it must not be taken for one that hangs, two seconds later."""
    runs: list[Run] = []

    async def handler(_value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # so the end of the run lets go of a cancellation, which takes a turn of the event loop
        asyncio.get_running_loop().call_soon(runs[0].abort)

    context = make_context(handler)
    pool, owner = DeliveryPool(1, "pool"), Owner()
    pool.start()
    runs.append(Run(owner, context, Record("orders", 0, 0, 1, None, b"v")))
    pool.submit(runs[0])
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert isinstance(context.clock, VirtualClock)
        context.clock.advance(10_000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert owner.ends == 1
        assert (len(context.handler.orphans), context.handler.orphans.total) == (0, 0)
    finally:
        await pool.stop(0.0)

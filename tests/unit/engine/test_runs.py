"""Runs of handlers: whatever they do is a failure of their record, and never costs a runner."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from doubles import Owner, deliver_once, failing, make_context, make_record, serving, settle, the

from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Record
from retryapp.core.verdicts import Defer, Reject, RetryLater
from retryapp.engine.delivery.batches import make_pools
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext, Run, RunAbortedError
from retryapp.engine.lane.rounds import BEHIND_S, ROUND_S
from retryapp.testing import VirtualClock


class TextExitsError(Exception):
    """Its text ends programs."""

    def __str__(self) -> str:
        raise SystemExit(3)


class HiddenCauseError(Exception):
    """Its cause cannot be looked at."""

    @property
    def __cause__(self) -> BaseException | None:
        raise asyncio.CancelledError


class NamelessType(type):
    """A type whose name cannot be looked at."""

    def __getattribute__(cls, name: str) -> Any:
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


async def test_a_coroutine_that_blocks_past_its_time_out_and_returns_is_done(clock: VirtualClock) -> None:
    """It was not cancelled before its end: another attempt would do its work twice. One that awaits then has failed."""

    async def blocks(_value: bytes) -> None:
        clock.advance(60_000)

    async def goes_on(_value: bytes) -> None:
        clock.advance(60_000)
        await asyncio.sleep(1)

    policy = RetryPolicy("1s", timeout="10s")
    turn = await deliver_once(make_context(blocks, policy), make_record())
    assert (turn.next_offset, turn.publishes, turn.rows) == (43, (), ())
    _, metadata = the(await deliver_once(make_context(goes_on, policy), make_record()))
    assert metadata.error_type == "retryapp.HandlerTimeoutError"


class TextWaitError(RetryLater):
    """A verdict whose wait is a text."""

    def __init__(self) -> None:
        super().__init__(after="1s")
        self.after_ms = "90s"  # type: ignore[assignment]


class NoWaitError(RetryLater):
    """A verdict that does not make what it inherits."""

    def __init__(self) -> None:
        self.after = 90


class NegativeWaitError(RetryLater):
    """A verdict with a wait of its own."""

    def wait_ms(self, now_ms: int) -> int:
        return -now_ms


class FractionError(Defer):
    """A verdict whose deadline is no whole number."""

    def __init__(self) -> None:
        super().__init__(deadline="1h")
        self.deadline_ms = 0.5  # type: ignore[assignment]


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: ExceptionGroup("g", [error, RetryLater(1)])])
@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (TextWaitError(), "it is '90s'"),
        (NoWaitError(), "asking for it raised AttributeError"),
        (NegativeWaitError(5), "it is -"),
        (FractionError(), r"it is 0\.5"),
    ],
    ids=["text", "none", "negative", "fraction"],
)
async def test_a_verdict_without_a_usable_wait_is_a_failure_with_the_wait_of_the_policy(
    error: Exception, problem: str, wrap: Callable[[Exception], Exception]
) -> None:
    """Its record was dead as `damaged`: a fault of the handler is no damage of the record."""
    context = make_context(failing(wrap(error)), RetryPolicy("5m 1h"))
    out, metadata = the(await deliver_once(context, make_record()))
    assert (out.topic, metadata.attempt, metadata.tier) == ("app.orders.retry", 1, "5m")
    assert metadata.error_type.endswith("BrokenVerdictError")
    name = re.escape(type(error).__qualname__)
    assert re.search(rf"{name} says no wait in whole milliseconds \({problem}", metadata.error_message)


async def test_a_verdict_without_a_usable_wait_changes_no_rejection() -> None:
    """No wait counts in such a group."""
    error = ExceptionGroup("g", [TextWaitError(), Reject("bad")])
    _, metadata = the(await deliver_once(make_context(failing(error)), make_record()))
    assert (metadata.reason, metadata.error_message) == ("rejected", "bad")


@pytest.mark.parametrize("until", ["its handler ran", "it was taken"])
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
    delivery = asyncio.create_task(deliver_once(context, record, on_run=runs.append))
    await asyncio.sleep(0) if until == "it was taken" else await settle()
    assert runs[0].begun is (until == "its handler ran")
    runs[0].abort()
    await settle()
    assert delivery.done()
    with pytest.raises(RunAbortedError):
        await delivery
    assert len(calls) == (until == "its handler ran")


async def test_a_task_that_is_cancelled_after_its_handler_spares_the_runner() -> None:
    """A library kept the task of a handler that has ended."""
    kept: list[asyncio.Task[Any]] = []
    seen: list[bytes] = []

    async def handler(value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        kept.append(task)
        seen.append(value)

    async with serving(handler, "5m", b"a") as (orders, _):
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

    async with serving(handler, "5m", b"a", b"b", b"c") as (orders, _):
        kept[0].cancel()
        await orders.settle()
        assert (orders.waiting, len(kept)) == ({"5m": 1}, 3)
        gate.set()
        await orders.advance(5 * 60_000)
        assert (orders.waiting, orders.dead_letters) == ({}, [])


async def _most_in_a_round(counts: list[int], done: Callable[[], bool]) -> list[int]:
    """Return the largest of each count within one round of the event loop; counts begin again in each round."""
    most = [0] * len(counts)
    while not done():
        await asyncio.sleep(0)
        most = [max(each) for each in zip(most, counts, strict=True)]
        counts[:] = [0] * len(counts)
    return most


async def test_handlers_that_never_wait_leave_the_event_loop_to_others(clock: VirtualClock) -> None:
    """They begin for a bounded time in each of its rounds, however many may run at once."""
    counts = [0]

    async def handler(_value: bytes) -> None:
        counts[0] += 1
        clock.advance(2)

    owner, pool, context = Owner(), DeliveryPool(3, "pool"), make_context(handler)
    pool.start()
    for offset in range(40):
        pool.submit(Run(owner, context, make_record(offset=offset)))
    try:
        assert await _most_in_a_round(counts, lambda: owner.ends == 40) == [ROUND_S * 1_000 / 2]
    finally:
        await pool.stop(0.0)


async def test_first_deliveries_take_more_of_the_event_loop_than_redeliveries(clock: VirtualClock) -> None:
    """Many rows that are due at one moment delay the others by a few milliseconds in each of its rounds."""
    counts = [0, 0]

    def counted(kind: int) -> DeliveryContext:
        async def handler(_value: bytes) -> None:
            counts[kind] += 1
            clock.advance(1)

        return make_context(handler)

    owners = Owner(), Owner()
    pools = make_pools(counted(0).handler)
    for kind, (pool, owner) in enumerate(zip(pools, owners, strict=True)):
        pool.start()
        context = counted(kind)
        for offset in range(40):
            pool.submit(Run(owner, context, make_record(offset=offset)))
    try:
        most = await _most_in_a_round(counts, lambda: owners[0].ends == 40)
        assert most == [ROUND_S * 1_000, BEHIND_S * 1_000]
        await _most_in_a_round(counts, lambda: owners[1].ends == 40)
    finally:
        for pool in pools:
            await pool.stop(0.0)


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

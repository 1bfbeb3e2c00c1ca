"""Runs that were given up: counted, bounded, never waited for; and a worker of the pool that always comes free."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from doubles import (
    MAIN,
    BankDownError,
    Stubborn,
    crowd,
    deliver_once,
    down,
    make_context,
    make_record,
    reopen,
    serving,
    settle,
    the,
)

from retryapp.core.batch import Batch
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.policy import RetryPolicy
from retryapp.core.text import counted
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.engine.handler.orphans import MIN_ORPHANS
from retryapp.testing import MemoryPartition, VirtualClock

TIMEOUT = RetryPolicy("5m 10m", timeout="30s")


class Hanging:
    """A plain function that hangs until the test is over; `b"fine"` does not."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.over = threading.Event()

    def __call__(self, value: bytes) -> None:
        self.begun.append(value)
        if value != b"fine":
            self.over.wait(20)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    handler = Hanging()
    yield handler
    handler.over.set()


async def until(condition: Callable[[], object]) -> None:
    """Let tasks and threads run until the condition holds."""
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come to hold")


# -- one delivery -----------------------------------------------------------------------------------------------------


async def test_a_plain_function_that_hangs_is_left_behind_at_its_time_out(
    clock: VirtualClock, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    """The record fails at that moment; the thread counts until it ends. That and a reached limit are said, by place."""
    context = make_context(hanging, TIMEOUT)
    orphans = context.handler.orphans
    crowd(orphans, orphans.limit - 1)
    delivery = asyncio.create_task(deliver_once(context, make_record(offset=42)))
    await until(lambda: hanging.begun)
    clock.advance(29_999)
    await settle()
    assert not delivery.done()
    with caplog.at_level(logging.WARNING):
        clock.advance(1)
        metadata = the(await delivery)[1]
    assert metadata.error_type == "retryapp.HandlerTimeoutError"
    assert "did not finish within " in metadata.error_message
    assert " ms " not in metadata.error_message
    assert metadata.last_failed_ms - metadata.started_ms == 30_000
    assert (len(orphans), orphans.total, orphans.limit) == (MIN_ORPHANS, MIN_ORPHANS, MIN_ORPHANS)
    assert [(line.levelname, line.message, vars(line)["offset"], vars(line)["count"]) for line in caplog.records] == [
        ("WARNING", "retryapp.run_abandoned", 42, MIN_ORPHANS),
        ("WARNING", "retryapp.handler_blocked", 42, MIN_ORPHANS),
    ]
    assert context.handler.name in vars(caplog.records[0])["error_message"]
    hanging.over.set()
    await until(lambda: len(orphans) == MIN_ORPHANS - 1)
    assert orphans.total == MIN_ORPHANS


@pytest.mark.parametrize("ending", [None, ValueError("while cleaning up")])
async def test_a_coroutine_that_cleans_up_in_time_is_no_orphan(clock: VirtualClock, ending: Exception | None) -> None:
    """Whatever it then returns or raises, it has timed out."""

    async def handler(_value: bytes) -> None:
        try:
            await clock.sleep(1_000)
        except asyncio.CancelledError:
            await clock.sleep(1)
        if ending is not None:
            raise ending

    context = make_context(handler, TIMEOUT)
    delivery = asyncio.create_task(deliver_once(context, make_record()))
    await until(lambda: clock.sleeping)
    clock.advance(30_000)
    await settle()
    assert (delivery.done(), clock.sleeping) == (False, 1)
    clock.advance(1_000)
    assert the(await delivery)[1].error_type == "retryapp.HandlerTimeoutError"
    assert context.handler.orphans.total == 0


async def test_a_handler_that_ends_in_the_moment_of_its_time_out_has_ended(clock: VirtualClock) -> None:
    """Its work is done: it would only be done twice."""

    async def handler(_value: bytes) -> None:
        await clock.sleep(30)

    context = make_context(handler, TIMEOUT)
    delivery = asyncio.create_task(deliver_once(context, make_record()))
    await until(lambda: clock.sleeping)
    clock.advance(30_000)
    assert (await delivery).publishes == ()


async def test_the_end_of_a_worker_waits_for_no_handler(
    clock: VirtualClock, hanging: Hanging, stubborn: Stubborn
) -> None:
    """Plain functions at once, coroutines after their two seconds."""
    context = make_context(hanging, TIMEOUT)
    delivery = asyncio.create_task(deliver_once(context, make_record()))
    await until(lambda: hanging.begun)
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert len(context.handler.orphans) == 1

    context = make_context(stubborn, TIMEOUT)
    delivery = asyncio.create_task(deliver_once(context, make_record()))
    await until(lambda: stubborn.started)
    delivery.cancel()
    await settle()
    assert not delivery.done()
    clock.advance(2_000)
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert len(context.handler.orphans) == 1


# -- the bound --------------------------------------------------------------------------------------------------------


async def test_at_the_limit_a_delivery_waits_and_neither_fails_nor_times_out(
    clock: VirtualClock, hanging: Hanging
) -> None:
    """It begins when an orphan has ended, and its time counts from then."""
    context = make_context(hanging, TIMEOUT)
    orphans = context.handler.orphans
    ends = crowd(orphans)
    delivery = asyncio.create_task(deliver_once(context, make_record(b"fine")))
    await settle()
    clock.advance(3_600_000)
    await settle()
    assert (delivery.done(), hanging.begun) == (False, [])
    ends[3].set_exception(ValueError("nobody's"))
    turn = await delivery
    assert (turn.publishes, hanging.begun) == ((), [b"fine"])
    for end in ends:
        end.done() or end.cancel()


@pytest.mark.parametrize(
    ("options", "limit", "keep"),
    [({}, MIN_ORPHANS, 2), ({"concurrency": 20}, 20, 40), ({"concurrency": 3, "max_concurrent": 40}, 40, 43)],
)
async def test_limits_are_for_first_deliveries_and_retries_together(
    options: dict[str, Any], limit: int, keep: int
) -> None:
    """More of these may run at once, if the handler says so; each has a thread that stays for the next."""
    handler = make_context(down, **options).handler
    assert (handler.orphans.limit, handler.threads._keep) == (limit, keep)


async def test_a_handler_that_stays_full_is_reported_once_with_its_records(clock: VirtualClock) -> None:
    """Not if one of its runs ends in time; the time counts from when it was full again."""
    reports: list[str | None] = []
    orphans = make_context(down).handler.orphans
    orphans.on_hung = lambda: reports.append(orphans.problem)
    ends = [asyncio.get_running_loop().create_future() for _ in range(MIN_ORPHANS + 2)]
    for n in range(MIN_ORPHANS):
        assert orphans.problem is None
        orphans.adopt(ends[n], f"app/orders/0/{n}")
    clock.advance(59_000)
    await settle()
    ends[0].set_result(None)
    await settle()
    assert orphans.problem is None
    clock.advance(60_000)
    await settle()
    assert reports == []
    for n in (MIN_ORPHANS, MIN_ORPHANS + 1):
        orphans.adopt(ends[n], f"app/orders/0/{n}")
    for _ in range(3):
        clock.advance(60_000)
        await settle()
    (report,) = reports
    names = ", ".join(f"app/orders/0/{n}" for n in range(1, MIN_ORPHANS + 2))
    assert report == f"no run can begin: {MIN_ORPHANS + 1} runs given up and going on: {names}"


# -- a partition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"order": Order.KEY}, {"order": Order.KEY, "batch": Batch(2, "1ms")}, {"concurrency": MIN_ORPHANS}],
    ids=lambda options: ",".join(options),
)
async def test_what_a_session_leaves_behind_hangs_only_after_its_time_out(
    hanging: Hanging, options: dict[str, Any]
) -> None:
    """A worker that ended for sound runs would give the others a rebalance, which leaves runs behind there."""

    def handle(value: bytes | list[bytes]) -> None:
        hanging(value[0] if isinstance(value, list) else value)

    hung: list[str | None] = []
    count = options.get("concurrency", 1)
    async with serving(handle, "1s; timeout=5m", *[b"a"] * count, key=b"k", **options) as (orders, _):
        orphans = orders.handler.orphans
        orphans.on_hung = lambda: hung.append(orphans.problem)
        await orders.advance(1)
        await orders.until(lambda: len(hanging.begun) == count)
        await orders.advance(120_000)
        await reopen(orders)
        assert (len(orphans), hung) == (count, [])
        await orders.advance(230_000)
        assert (len(hanging.begun), hung) == (count, [])
        await orders.advance(10_000)
        (problem,) = hung
        assert f"{counted(count, 'run')} given up and going on: app/orders@" in str(problem)


async def test_coroutines_that_swallow_their_cancellation_do_not_stop_the_records_behind_them(
    stubborn: Stubborn,
) -> None:
    """The pool is never short of a worker for longer than the two seconds."""
    async with serving(stubborn, TIMEOUT, b"a", b"fine", concurrency=1) as (orders, _):
        await orders.advance(30_000)
        assert stubborn.started == [b"a"]
        await orders.advance(2_000)
        assert stubborn.started == [b"a", b"fine"]
        assert orders.waiting == {"5m": 1}
        assert len(orders.handler.orphans) == 1


async def test_a_drain_gives_up_at_once_what_has_not_begun(hanging: Hanging) -> None:
    """A delivery that waits for an orphan would take the whole grace for nothing."""
    async with MemoryPartition(hanging, TIMEOUT) as orders:
        crowd(orders.handler.orphans)
        await orders.send(b"fine")
        assert orders.engine.in_flight == 1
        await asyncio.wait_for(orders.finish(25.0), None)  # no time passes
        assert (hanging.begun, orders.transport.offsets[MAIN]) == ([], 0)


@pytest.mark.parametrize("batch", [None, Batch(2, "1ms")])
async def test_what_has_waited_does_not_begin_where_another_worker_may_have_it(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch, batch: Batch | None
) -> None:
    """The wait for an orphan may have been long, and the worker cut off since."""
    lapsed: list[bool] = []

    def handle(values: list[bytes]) -> None:
        hanging(*values)

    async with MemoryPartition(handle if batch else hanging, TIMEOUT, batch=batch) as orders:
        context = replace(orders.engine.context, lapsed=lambda: bool(lapsed))
        monkeypatch.setattr(orders.engine, "context", context)
        ends = crowd(orders.handler.orphans)
        await orders.send(b"fine")
        await orders.advance(1)
        assert (hanging.begun, orders.engine.in_flight) == ([], 1)
        lapsed.append(True)
        ends[0].set_result(None)
        await orders.settle()
        assert hanging.begun == []
        assert "MembershipLapsedError" in str(orders.lane.last_error)
        lapsed.clear()
        await orders.advance(200)
        await orders.advance(1)
        await orders.until(lambda: hanging.begun == [b"fine"])


@pytest.mark.parametrize("batch", [None, Batch(2, "1ms")])
async def test_what_has_waited_does_not_begin_in_a_pause(batch: Batch | None) -> None:
    """Somebody has paused its handler meanwhile."""
    calls: list[object] = []

    async def handle(value: object) -> None:
        calls.append(value)

    async with MemoryPartition(handle, TIMEOUT, batch=batch) as orders:
        ends = crowd(orders.handler.orphans)
        await orders.send(b"a")
        await orders.advance(1)
        assert (calls, orders.engine.in_flight) == ([], 1)
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE, by="me", why="a deploy"))
        ends[0].set_result(None)
        await orders.advance(100)
        assert calls == []
        await orders.obey(HandlerCommand(id="r", verb=HandlerVerb.RESUME, by="me"))
        await orders.to_rest()
        assert len(calls) == 1


@pytest.mark.parametrize("batch", [None, Batch(2, "1ms")])
@pytest.mark.parametrize("command", ["cancel", "hold"])
async def test_what_has_waited_does_not_begin_if_a_command_says_so(command: str, batch: Batch | None) -> None:
    """It is claimed, and waits for an orphan to end."""
    calls: list[object] = []

    async def handle(value: object) -> None:
        calls.append(value)
        raise BankDownError

    async with serving(handle, TIMEOUT, b"a", batch=batch) as (orders, _):
        await orders.advance(1)
        ends = crowd(orders.handler.orphans)
        await orders.advance(300_000)
        await orders.advance(1)
        assert (len(calls), orders.engine.in_flight) == (1, 1)
        assert (await orders.command(command, 0))["refused"] is None
        ends[0].set_result(None)
        await orders.advance(100)
        assert len(calls) == 1
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"] * (command == "cancel")
        assert sum(orders.waiting.values()) == (command == "hold")


@pytest.mark.parametrize("batch", [None, Batch(2, "1h")])
async def test_what_waits_for_an_orphan_is_forgotten_with_its_session(batch: Batch | None) -> None:
    """A lane that opens again and again does not fill the memory with records that it reads again."""
    calls: list[object] = []

    async def handle(value: object) -> None:
        calls.append(value)

    async with MemoryPartition(handle, TIMEOUT, concurrency=2, batch=batch) as orders:
        ends = crowd(orders.handler.orphans)
        await orders.send(*[b"%d" % number for number in range(50)])
        for _ in range(3):
            await reopen(orders)
        assert [len(queue) for pool in orders._pools for queue in pool._queues.values()] == [50]
        ends[0].set_result(None)
        await orders.to_rest()
        assert sum(len(each) if isinstance(each, list) else 1 for each in calls) == 50


async def test_a_thread_that_cannot_be_had_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane opens again, and the record is delivered when there is one."""
    attempts: list[int] = []

    def handler(_value: bytes, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with MemoryPartition(handler, TIMEOUT) as orders:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            await orders.send(b"a")
        assert "can't start new thread" in str(orders.lane.last_error)
        await orders.advance(100)
        await orders.until(lambda: attempts == [1] and orders.engine.in_flight == 0)
        await orders.advance(1_000)
        assert (orders.transport.offsets[MAIN], orders.waiting) == (1, {})

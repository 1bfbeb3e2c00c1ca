"""The end of an assignment or of a worker: who goes on meanwhile, for how long, and what that may cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, running_clock

from retryapp.core.policy import RetryPolicy
from retryapp.engine.lane.lane import LaneState
from retryapp.engine.lane.transport import NotMemberError
from retryapp.engine.worker.ownership import Ownership
from retryapp.engine.worker.placement import Placed, Served
from retryapp.testing import MemoryLaneTransport, MemoryPartition, RecordingObserver, Step

DRAIN_S = 10.0
OTHER = MAIN._replace(partition=1)


class Worker:
    """A worker with partitions in memory."""

    def __init__(self, parts: AsyncExitStack) -> None:
        self.ownership = Ownership(clock=running_clock(), observer=RecordingObserver(), drain_s=DRAIN_S)
        self.parts: list[MemoryPartition] = []
        self._stack = parts

    async def add(
        self, function: Any, policy: Any = "1s 1h", *, main: str = "orders", **options: Any
    ) -> MemoryPartition:
        """Give it a partition; those of one handler share its runners."""
        alike = [part for part in self.parts if part.handler.main == main]
        shared: Any = {"pools": alike[0]._pools} if alike else {}
        clock = running_clock()
        made = MemoryPartition(
            function, policy, main=main, partition=len(alike), transport=MemoryLaneTransport(clock), **shared, **options
        )
        made = await self._stack.enter_async_context(made)
        assert made._task is not None
        served = self.ownership.served.setdefault(main, Served(made.handler, *made._pools))
        assert served.handler.main == main
        self.ownership.placed[main, len(alike)] = Placed(made.engine, made.lane, made.transport, made._task)  # type: ignore[arg-type]
        self.parts.append(made)
        return made

    async def advance(self, ms: int) -> None:
        """Let time pass, in steps, for all of them."""
        for _ in range(ms // 250):
            self.parts[0].clock.advance(250)
            await self.settle()

    async def settle(self) -> None:
        for part in self.parts:
            await part.settle()


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async with AsyncExitStack() as parts:
        yield Worker(parts)


async def test_an_idle_partition_goes_on_while_the_run_of_another_lasts(worker: Worker) -> None:
    """What is due is called, and what comes is delivered: it is read nowhere else meanwhile."""
    gate = Gate()
    slow, idle = [await worker.add(gate, concurrency=2) for _ in range(2)]
    await idle.send(b"retry")
    gate.let(b"retry", BankDownError())
    await slow.send(b"slow")
    revoke = asyncio.create_task(worker.ownership.suspend(DRAIN_S))
    await worker.advance(1_500)
    assert gate.started == [b"retry", b"slow", b"retry"], "the retry that was due 1 s later"
    gate.let(b"retry")
    await idle.send(b"new")
    gate.let(b"new")
    await worker.advance(500)
    assert (gate.done, idle.transport.offsets[OTHER]) == ([b"retry", b"new"], 2)
    await gate.end(worker, b"slow")
    assert revoke.done(), "nobody runs any more"
    assert slow.transport.offsets[MAIN] == 1
    assert {part.lane.state for part in worker.parts} == {LaneState.CLOSED}
    assert worker.ownership.placed == {}


async def test_nothing_begins_in_the_second_half_and_the_deadline_holds(worker: Worker) -> None:
    """What began before has as long as that to end; what was there at first has the whole time, and no more."""
    gate = Gate()
    slow, idle = [await worker.add(gate, concurrency=3) for _ in range(2)]
    await slow.send(b"slow")
    revoke = asyncio.create_task(worker.ownership.suspend(DRAIN_S))
    await worker.settle()
    await worker.advance(4_750)
    await idle.send(b"late")
    await worker.advance(500)
    await idle.send(b"too late")
    assert gate.started == [b"slow", b"late"]
    await worker.advance(4_250)
    gate.let(b"late", BankDownError())
    await worker.advance(250)
    assert (idle.lane.state, idle.transport.offsets[OTHER], idle.waiting) == (LaneState.CLOSED, 1, {"1s": 1})
    assert list(gate.running) == [b"slow"]
    await worker.advance(250)
    assert gate.running == {}, "cancelled"
    assert revoke.done()
    assert slow.transport.offsets[MAIN] == 0, "its next owner runs it"
    assert gate.started == [b"slow", b"late"]


@pytest.mark.parametrize(("took_s", "begins"), [(3.0, True), (6.0, False)])
async def test_nothing_begins_that_usually_does_not_end_in_time(worker: Worker, took_s: float, begins: bool) -> None:
    """It would be cancelled and run again, where its next owner would have run it once. One run in a hundred may."""
    gate = Gate()
    slow, idle = [await worker.add(gate, concurrency=2) for _ in range(2)]
    durations = worker.ownership.served["orders"].handler.durations
    for duration_s in (60.0, *[0.02] * 98, took_s, took_s):
        durations.note(duration_s)
    await slow.send(b"slow")
    revoke = asyncio.create_task(worker.ownership.suspend(DRAIN_S))
    await worker.settle()
    await idle.send(b"new")
    assert (b"new" in gate.started) is begins
    gate.let_all()
    await worker.settle()
    assert revoke.done()


async def test_a_handler_that_takes_long_ends_no_other(worker: Worker) -> None:
    """Its own partitions begin nothing more; those of another go on."""
    gate = Gate()
    slow, idle = await worker.add(gate, main="reports"), await worker.add(gate)
    worker.ownership.served["reports"].handler.durations.note(60.0)
    await slow.send(b"report", b"next")
    revoke = asyncio.create_task(worker.ownership.suspend(DRAIN_S))
    await worker.settle()
    await idle.send(b"new")
    gate.let(b"report")
    await gate.end(worker, b"new")
    assert gate.done == [b"report", b"new"]
    assert revoke.done()


async def test_a_wait_for_a_try_in_place_keeps_nobody(worker: Worker) -> None:
    """Its last error is its outcome, as in a drain: its partition is given away at once."""
    gate = Gate()
    orders = await worker.add(gate, RetryPolicy("1h", hot="3s*2", timeout="1m"))
    await orders.send(b"a")
    gate.let(b"a", BankDownError())
    await worker.advance(250)
    await worker.ownership.suspend(DRAIN_S)
    assert (gate.started, orders.waiting) == ([b"a"], {"1h": 1})


@pytest.mark.parametrize("first", ["stop", "revoke"])
async def test_of_a_revoke_and_a_stop_at_once_the_shorter_time_counts(worker: Worker, first: str) -> None:
    """The group waits for this worker no longer than in any rebalance; and no stop makes it wait longer."""
    gate = Gate()
    slow = await worker.add(gate)
    await slow.send(b"slow")
    times = {"stop": worker.ownership.leave(40.0), "revoke": worker.ownership.suspend(DRAIN_S)}
    ends = [asyncio.create_task(times.pop(first))]
    await worker.settle()
    ends.append(asyncio.create_task(times.popitem()[1]))
    await worker.settle()
    await worker.advance(9_750)
    assert list(gate.running) == [b"slow"]
    await worker.advance(250)
    assert gate.running == {}
    assert [end.done() for end in ends] == [True, True]
    assert slow.lane.state is LaneState.CLOSED


async def test_a_partition_that_is_lost_while_it_goes_on_holds_nobody_up(worker: Worker) -> None:
    """Its lane has found that this worker is no member any more: nothing of it runs on, and others leave."""
    gate = Gate()
    slow, idle = [await worker.add(gate, concurrency=2) for _ in range(2)]
    await slow.send(b"slow")
    await idle.send(b"a")
    revoke = asyncio.create_task(worker.ownership.suspend(DRAIN_S))
    await worker.settle()
    idle.transport.fail(Step.PROVE, NotMemberError("left"))
    idle.lane.fail(RuntimeError("its producer was fenced"))
    await worker.advance(1_000)
    assert list(gate.running) == [b"slow"]
    assert idle.lane.state is LaneState.IDLE
    await slow.send(b"new")
    gate.let_all()
    await worker.settle()
    assert revoke.done()
    assert (slow.transport.offsets[MAIN], idle.transport.offsets[OTHER]) == (2, 0)


async def test_no_partition_is_placed_once_the_worker_ends(worker: Worker) -> None:
    """A group that rebalances during a stop gives it some; it is about to leave."""
    gate = Gate()
    await worker.add(gate)
    await worker.ownership.leave(DRAIN_S)
    assert worker.ownership.intake.on_assigned is not None
    await worker.ownership.intake.on_assigned(2, "m", {MAIN})
    assert (worker.ownership.placed, worker.ownership.assigned) == ({}, False)

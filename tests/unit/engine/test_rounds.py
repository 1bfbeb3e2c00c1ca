"""Rounds of the event loop: redeliveries and jobs, of all partitions together, leave the most of each to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from doubles import DLQ, MAIN, MakeRig, post, running_clock

from retryapp import Reject
from retryapp.core.control import Verb
from retryapp.core.jobs import JobCommand, JobPart, JobVerb, LetterFilter
from retryapp.engine.lane.limits import LaneLimits
from retryapp.engine.lane.rounds import BEHIND_S, RECENT_S, ROUND_S, Rounds
from retryapp.engine.lane.transport import SMALL
from retryapp.engine.partition import jobs
from retryapp.engine.partition.letter_commands import LetterCommands
from retryapp.ports import LaneBatch, LaneReceipt
from retryapp.testing import MemoryLaneTransport, MemoryPartition, VirtualClock

LETTERS = 120
HEALTHY = b"healthy"
NO_REST = LaneLimits(rest=0.0)
"""Only letters move the clock: a lane that rested after the last one would do so for ever."""


class Judged:
    """Letters that jobs judge, a millisecond each."""

    def __init__(self, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most = 0
        of_job = LetterCommands.of_job

        def slow(*args: Any) -> Any:
            self.count += 1
            clock.advance(1)
            return of_job(*args)

        monkeypatch.setattr(LetterCommands, "of_job", slow)

    def look(self) -> None:
        """End a round of the event loop."""
        self.most, self.count = max(self.most, self.count), 0


class Service:
    """A handler that fails its first calls, but for healthy records."""

    def __init__(self) -> None:
        self.down = True
        self.again = 0

    async def __call__(self, value: bytes) -> None:
        if self.down and value != HEALTHY:
            raise Reject("down")
        self.again += value != HEALTHY


def begin(orders: MemoryPartition) -> None:
    """Send the command that replays all letters, without a wait."""
    upto = {DLQ: orders.records(DLQ)[-1].offset + 1}
    part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), canary=0, upto=upto)
    post(orders, JobCommand(id="c", job="j", verb=JobVerb.START, part=part, by="ann"))


async def replay(both: tuple[MemoryPartition, MemoryPartition], service: Service, judged: Judged) -> None:
    """Replay all letters of two partitions, looking at each round."""
    service.down = False
    for orders in both:
        begin(orders)

    def done() -> bool:
        judged.look()
        return service.again == len(both) * LETTERS

    await asyncio.gather(*(orders.until(done) for orders in both))


@pytest.mark.parametrize("healthy", [True, False])
async def test_jobs_leave_the_event_loop_to_first_deliveries(healthy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all partitions together judge letters for 2 ms in a round; without first deliveries for 10 ms."""
    service, clock = Service(), running_clock()
    async with (
        MemoryPartition(service, clock=clock, limits=NO_REST) as first,
        MemoryPartition(service, clock=clock, limits=NO_REST, partition=1, pools=first._pools) as second,
    ):
        for orders in (first, second):
            await orders.send(*[b"dead"] * LETTERS)
        await first.advance(round(RECENT_S * 1_000))
        if healthy:
            await second.send(HEALTHY)
        judged = Judged(clock, monkeypatch)
        await replay((first, second), service, judged)
        assert judged.most == (BEHIND_S if healthy else ROUND_S) * 1_000


async def test_a_turn_of_a_job_is_small_while_first_deliveries_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is in the tables before the next one begins; and writing a large one would keep the event loop."""
    monkeypatch.setattr(jobs, "MOST_BESIDE", 20)
    service = Service()
    async with MemoryPartition(service) as orders:
        await orders.send(*[b"dead"] * LETTERS)
        await orders.send(HEALTHY)
        service.down = False
        sizes, commit = list[int](), orders.transport.commit

        async def counted(batch: LaneBatch) -> LaneReceipt:
            sizes.append(sum(row.value is not None for row in batch.rows))
            return await commit(batch)

        monkeypatch.setattr(orders.transport, "commit", counted)
        begin(orders)
        await orders.until(lambda: service.again == LETTERS)
        assert (max(sizes), sum(sizes)) == (20, LETTERS)


async def test_redeliveries_and_jobs_take_turns() -> None:
    """In each round one of those that wait has its time, and each comes to it, however much the others have to do."""
    clock, rounds, took = running_clock(), Rounds(), list[str]()

    async def work(name: str, pieces: int) -> None:
        for _ in range(pieces):
            await rounds.turn(name)
            took.append(name)
            clock.advance(round(ROUND_S * 1_000) // 2)

    await asyncio.gather(work("many", 8), work("some", 4), work("few", 2))
    assert took == ["many"] * 4 + ["some"] * 2 + ["few"] * 2 + ["many"] * 2 + ["some"] * 2 + ["many"] * 2


async def test_who_waits_has_its_turn_however_much_else_the_event_loop_does() -> None:
    """First deliveries may take longer than a round, in each; one who came later must not begin it before them."""
    clock, rounds, took = running_clock(), Rounds(), list[str]()

    async def take(name: str, *, comes_back: bool = False) -> None:
        if comes_back:
            await rounds.turn(name)
            clock.advance(round(ROUND_S * 1_000))
            await asyncio.sleep(0)
        await rounds.turn(name)
        took.append(name)

    async def deliver() -> None:
        while len(took) < 2:
            clock.advance(round(ROUND_S * 1_000))
            await asyncio.sleep(0)

    await asyncio.gather(take("later", comes_back=True), deliver(), take("first"))
    assert took == ["first", "later"]


async def test_many_tasks_of_one_have_one_turn() -> None:
    """A pool of a hundred runners does not keep a lane or a job waiting for a hundred rounds."""
    clock, rounds, took = running_clock(), Rounds(), list[str]()

    async def take(name: str) -> None:
        await rounds.turn(name)
        took.append(name)
        clock.advance(round(ROUND_S * 1_000) // 2)

    await asyncio.gather(*(take("pool") for _ in range(9)), take("lane"))
    assert took == ["pool"] * 4 + ["lane"] + ["pool"] * 5


async def test_who_waits_no_more_keeps_nobody_from_a_turn() -> None:
    """The session of a job may end while it waits."""
    clock, rounds = running_clock(), Rounds()

    async def take_all() -> None:
        await rounds.turn("busy")
        clock.advance(10)

    _, gone, others = [asyncio.create_task(each) for each in (take_all(), rounds.turn("gone"), rounds.turn("others"))]
    await asyncio.sleep(0)
    gone.cancel()
    await others
    assert gone.cancelled()


async def test_lanes_write_much_in_turns(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large transactions that end at one moment each has a round; one of few records waits for none."""
    rigs, rounds, clock = [await make_rig().start() for _ in range(4)], Rounds(), running_clock()
    sizes, written, apply = [50, 50, 50, 1], list[list[int]](), MemoryLaneTransport.apply

    def slow(transport: MemoryLaneTransport, batch: LaneBatch, receipt: LaneReceipt) -> None:
        written[-1].append(batch.changes)
        if batch.changes > 1:
            clock.advance(round(ROUND_S * 1_000))
        apply(transport, batch, receipt)

    monkeypatch.setattr(MemoryLaneTransport, "apply", slow)
    for rig, size in zip(rigs, sizes, strict=True):
        rig.transport.rounds = rounds
        rig.submit("much", publishes=size)
    for _ in range(100):
        written.append([])
        await asyncio.sleep(0)
    assert sorted(size for each in written for size in each) == sorted(sizes)
    assert [each for each in written if 1 in each] == [next(filter(None, written))]
    assert max(each.count(50) for each in written) == 1


@pytest.mark.parametrize("committed", [False, True])
async def test_a_worker_that_dies_while_its_lane_waits_for_its_turn_loses_nothing(
    committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it sends, nothing has been handed off; behind its commit the next opening reads what the tables lack."""
    down, calls = [True], Counter[bytes]()

    async def charge(value: bytes) -> None:
        calls[value] += 1
        if down:
            raise OSError("away")

    values = [b"%d" % number for number in range(SMALL + 10)]
    commit, waits, done = MemoryLaneTransport.commit, asyncio.Event(), list[LaneBatch]()

    async def noted(transport: MemoryLaneTransport, batch: LaneBatch) -> LaneReceipt:
        receipt = await commit(transport, batch)
        done.append(batch)
        return receipt

    async def until_death(_transport: MemoryLaneTransport, batch: LaneBatch) -> None:
        if batch.changes > SMALL and (batch in done) is committed:
            waits.set()
            await asyncio.Event().wait()

    orders = MemoryPartition(charge, "1s")
    with monkeypatch.context() as patched:
        patched.setattr(MemoryLaneTransport, "commit", noted)
        patched.setattr(MemoryLaneTransport, "turn", until_death)
        async with orders:
            for value in values:
                orders.transport.append(MAIN, None, value)
            await orders.until(waits.is_set)
    assert calls == dict.fromkeys(values, 1)
    down.clear()
    async with MemoryPartition(charge, "1s", transport=orders.transport) as again:
        await again.advance(60_000)
        assert calls == dict.fromkeys(values, 2)
        assert (again.waiting, again.dead_letters) == ({}, [])
        assert len(again.records("app.orders.retry")) == len(values) * committed

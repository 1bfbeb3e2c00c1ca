"""Only so many runs of what comes back to one service go on at once in a worker; nobody else waits for that."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, pass_time, reopen, scheduler_of
from typing_extensions import override

from retryapp import RetryPolicy, Unavailable
from retryapp.core.batch import Batch
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.errors import InvalidSettingError
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.engine.handler.places import Places
from retryapp.testing import MemoryPartition, VirtualClock
from retryapp.testing.lane import MemoryReader

FEW = CircuitBreaker(minimum_calls=1_000, max_concurrent=2)
LEVELS = {"paused": (HandlerVerb.PAUSE, HandlerVerb.RESUME), "out": (HandlerVerb.OPEN, HandlerVerb.CLOSE)}


class Services:
    """The first delivery fails as its service is down, where its value names one; a retry waits at the gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise BankDownError if value.startswith(b"once") else Unavailable(value.split()[0].decode())
        await self.gate(value)

    def running(self, name: bytes = b"ledger") -> list[bytes]:
        """Return which retries of a service run now."""
        return sorted(value for value in self.gate.running if value.startswith(name))


def partition(services: Any, policy: RetryPolicy | str = "1s 1s", **options: Any) -> MemoryPartition:
    """Make one with two circuits, one of which has few places."""
    circuits = {"ledger": FEW, "mail": CircuitBreaker(minimum_calls=1_000)}
    return MemoryPartition(services, policy, **{"circuits": circuits, "concurrency": 20, **options})


@asynccontextmanager
async def two_of_a_worker(
    services: Services, runners: int = 20, former: MemoryPartition | None = None, **options: Any
) -> AsyncIterator[tuple[MemoryPartition, MemoryPartition]]:
    """Run two partitions of one handler; its retries have so many runners. The first goes on after a `former` life."""
    clock = VirtualClock() if former is None else former.clock
    pools, left = (DeliveryPool(20, "first"), DeliveryPool(runners, "again")), (former and former.transport, None)
    facts: dict[str, Any] = {"pools": pools, "clock": clock, **options}
    made = [partition(services, partition=number, transport=left[number], **facts) for number in (0, 1)]
    first, second = made
    second.engine.context.pace.gates["ledger"].places = first.handler.places["ledger"]
    for pool in pools:
        pool.start()
    try:
        async with first, second:
            yield first, second
            services.gate.let_all()
            for each in (first, second, first):
                await each.settle()
            for each in made:
                await each.to_rest()
    finally:
        for pool in pools:
            await pool.stop(0.0)


async def test_only_so_many_run_at_once_and_others_wait_for_none_of_them() -> None:
    """They wait in the table as a queue, whatever the runners do: other retries, first deliveries are on time."""
    services = Services()
    async with partition(services) as orders:
        await orders.send(*(b"ledger %d" % n for n in range(200)), *(b"mail %d" % n for n in range(5)), b"once")
        await orders.advance(1_000)
        assert services.running() == [b"ledger 0", b"ledger 1"]
        assert len(services.gate.running) == 2 + 5 + 1
        assert len(scheduler_of(orders).claimed) == 8, "the rows that may not go are not claimed"
        told = await orders.command("retry-now", 50)
        assert told["text"] == "due now; as many of its circuit run as may at once"
        await services.gate.end(orders, b"ledger 1")
        assert services.running() == [b"ledger 0", b"ledger 2"], "at once, before its outcome is durable"
        services.gate.let_all()
        for _ in range(10):
            await orders.settle()
        assert len(services.gate.done) == 206, "one begins when another has ended: no time passes"


async def test_partitions_take_turns_and_have_the_places_together() -> None:
    """One with many rows does not keep the others from theirs."""
    services = Services()
    async with two_of_a_worker(services) as (many, few):
        await many.send(*(b"ledger a%d" % n for n in range(20)))
        await few.send(*(b"ledger b%d" % n for n in range(3)))
        await many.advance(1_000)
        await few.settle()
        assert services.running() == [b"ledger a0", b"ledger a1"]
        for _ in range(6):
            await services.gate.end(many, services.running()[0])
            await few.settle()
            assert len(services.running()) == 2
        assert bytes(value.split()[1][0] for value in services.gate.started) == b"aaababab"


@pytest.mark.parametrize("how", ["paused", "out", "reopened", "drained"])
async def test_a_partition_that_stands_still_keeps_no_place(how: str) -> None:
    """What it has claimed, and no runner has begun, leaves the place to rows of others."""
    services, own = Services(), {"circuit": CircuitBreaker(minimum_calls=1_000)} if how == "out" else {}
    async with two_of_a_worker(services, runners=2, **own) as (stands, goes):
        await stands.send(b"once 1", b"once 2", b"ledger a0", b"ledger a1")
        await stands.advance(1_000)
        await goes.send(b"ledger b0", b"ledger b1")
        await goes.advance(1_000)
        assert (len(scheduler_of(stands).claimed), len(scheduler_of(goes).claimed)) == (4, 0)
        match how:
            case "reopened":
                await reopen(stands)
            case "drained":
                draining = asyncio.create_task(stands.engine.drain(10.0))
                await stands.settle()
            case _:
                await stands.obey(HandlerCommand(id="1", verb=LEVELS[how][0]))
        for value in services.running(b"once"):
            services.gate.let(value)
        await stands.settle()
        await goes.settle()
        assert services.running() == [b"ledger b0", b"ledger b1"]
        if how == "drained":
            await draining
            await reopen(stands)
            stands.engine._draining = False
        elif how in LEVELS:
            await stands.obey(HandlerCommand(id="2", verb=LEVELS[how][1]))


async def test_who_has_no_more_rows_does_not_keep_others_waiting() -> None:
    """A place that is free is for the next one in line, also where the first has ended, or lost what it had."""
    services = Services()
    async with two_of_a_worker(services) as (first, second):
        await first.send(b"ledger a0", b"ledger a1", b"ledger a2")
        await second.send(b"ledger b0")
        await first.advance(1_000)
        await second.settle()
        assert (await first.command("cancel", 2))["refused"] is None
        await reopen(first)
        await second.settle()
        assert b"ledger b0" in services.running()
        await services.gate.end(second, b"ledger b0")
        assert services.running() == [b"ledger a0", b"ledger a1"], "those of its next session"


async def test_what_was_held_back_by_its_sequence_has_no_place_of_others() -> None:
    """The head of a sequence is claimed without the queue: it goes back there where no place is free."""
    services = Services()
    async with partition(services, "1s 1s") as orders:  # without an order: several of a key fail
        await orders.send(*(b"ledger %d" % n for n in range(4)), key=b"k")
        await orders.send(b"ledger x", b"ledger y", key=b"other")
    async with partition(services, "1s 1s", order=Order.KEY, transport=orders.transport) as orders:
        await orders.advance(1_000)
        assert services.running() == [b"ledger 0", b"ledger x"]
        for _ in range(6):
            await services.gate.end(orders, services.running()[0])
            assert len(services.running()) <= 2
        await orders.advance(2_000)
        assert services.gate.most == 2
        await services.gate.end_all(orders)
        assert len(services.gate.done) == 6


async def test_each_record_of_a_list_has_a_place() -> None:
    """As each counts for its circuit."""
    gate = Gate()

    async def handler(values: list[bytes], records: list[Delivery]) -> None:
        for record in records:
            if record.attempt == 1:
                record.fail(Unavailable("ledger"))
        if records[0].attempt > 1:
            await gate(b",".join(values))

    async with partition(handler, batch=Batch(10, "10ms")) as orders:
        await orders.send(*(b"%d" % n for n in range(5)))
        await orders.advance(10)
        await orders.advance(1_100)
        await orders.advance(10)
        assert [*gate.running] == [b"0,1"]
        gate.let_all()
        await pass_time(orders, 100, 10)
        assert gate.done == [b"0,1", b"2,3", b"4"]


def test_a_place_is_offered_to_one_at_a_time_in_turn() -> None:
    """Who takes all that it may stands in line again; who leaves has the next one woken."""
    places, woken = Places(2), list[str]()
    wakes = {name: functools.partial(woken.append, name) for name in "abc"}
    assert places.room(wakes["a"]) == 2
    assert places.take("a1")
    assert places.take("a2")
    places.looked(wakes["a"], more=True)
    assert (places.room(wakes["b"]), places.room(wakes["c"]), places.take("c1"), places.full) == (0, 0, False, True)
    places.free("a1")
    places.free("a2")
    assert (woken, places.room(wakes["c"]), places.room(wakes["a"])) == (["a", "a"], 0, 1), "one of two: others wait"
    places.looked(wakes["a"], more=False)
    assert (woken, places.room(wakes["b"])) == (["a", "a", "b"], 1)
    places.leave(wakes["b"])
    assert (woken, places.room(wakes["c"])) == (["a", "a", "b", "c"], 2)
    places.free("never")
    assert woken == ["a", "a", "b", "c"]


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in (0, 2.5, True):
        with pytest.raises(InvalidSettingError, match="max_concurrent"):
            CircuitBreaker(max_concurrent=wrong)  # type: ignore[arg-type]


async def test_rows_whose_records_cannot_be_read_again_keep_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main topic does not answer for one partition: what waits there by reference leaves the places to others."""
    services, away, read = Services(), list[MemoryReader](), MemoryReader.records

    async def records(reader: MemoryReader, *args: Any) -> Any:
        if reader in away:
            raise ConnectionError("no leader")
        return await read(reader, *args)

    monkeypatch.setattr(MemoryReader, "records", records)
    async with two_of_a_worker(services, by_reference=True) as (stands, goes):
        away.append(stands.transport.reader)
        await stands.send(b"ledger a0", b"ledger a1", b"ledger a2")
        await stands.advance(1_000)
        await goes.send(b"ledger b0", b"ledger b1")
        for _ in range(4):
            await goes.advance(1_000)
            await stands.settle()
        assert services.running() == [b"ledger b0", b"ledger b1"]
        away.clear()
        for value in services.running():
            services.gate.let(value)
        for _ in range(3):
            await stands.advance(1_000)
            await goes.settle()
        assert services.running() == [b"ledger a0", b"ledger a1"]


async def test_suspect_rows_that_wait_for_the_end_of_a_pause_keep_no_place() -> None:
    """Two lives have ended while they ran; a rule has paused their partition, and not the others."""
    services = Services()
    async with partition(services) as orders:
        await orders.send(b"ledger a0", b"ledger a1")
        await orders.advance(1_000)
    for _ in range(2):
        services.gate.running.clear()
        async with partition(services, transport=orders.transport) as orders:
            assert len(services.running()) == 2
    services.gate.running.clear()
    async with two_of_a_worker(services, former=orders) as (stands, goes):
        await stands.advance(1_000)
        assert services.running() == [b"ledger a0"], "in groups of half"
        await stands.obey(HandlerCommand(id="1", verb=HandlerVerb.PAUSE))
        await goes.send(b"ledger b0", b"ledger b1")
        await services.gate.end(stands, b"ledger a0")
        await goes.advance(1_000)
        assert services.running() == [b"ledger b0", b"ledger b1"]
        await stands.obey(HandlerCommand(id="2", verb=HandlerVerb.RESUME))
        await stands.settle()
        await services.gate.end(goes, b"ledger b0")
        await stands.advance(1_000)
        assert services.running() == [b"ledger a1", b"ledger b1"]


async def test_rows_that_wait_for_a_record_that_has_its_worker_to_itself_keep_no_place() -> None:
    """Its own run may need one, if it is a row; here rows of another worker get them."""

    class Slow(Services):
        @override
        async def __call__(self, value: bytes, delivery: Delivery) -> None:
            await (self.gate(value) if value == b"alone" else super().__call__(value, delivery))

    services = Slow()
    async with partition(services) as orders:
        await orders.send(b"ledger a0", b"ledger a1")
    orders.clock.advance(1_000)
    orders.transport.append(MAIN, None, b"alone")
    orders.transport.broker.notes[MAIN] = "s2:old@2"
    async with two_of_a_worker(services, former=orders) as (stands, goes):
        await stands.advance(1_000)
        await goes.send(b"ledger b0", b"ledger b1")
        await goes.advance(1_000)
        assert services.running() == [b"ledger b0", b"ledger b1"]

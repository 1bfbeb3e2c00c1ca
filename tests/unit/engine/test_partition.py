"""A partition whole: deliver, park, fire and the lane, on memory topics in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from retryapp.core.errors import StoreBrokenError
from retryapp.core.headers import decode_metadata
from retryapp.core.names import RETRY_ATTEMPT
from retryapp.core.record import Record
from retryapp.core.rows import parse_row_key
from retryapp.core.verdicts import RetryLater
from retryapp.engine import partition as engine_partition
from retryapp.engine import pool as engine_pool
from retryapp.engine.lane import LaneLimits
from retryapp.engine.pool import DeliveryPool
from retryapp.engine.run import RunAbortedError
from retryapp.ports import Event, TopicPartition
from retryapp.testing import MemoryPartition, Step, VirtualClock

MAIN = TopicPartition("orders", 0)
RETRY = TopicPartition("app.orders.retry", 0)
REDELIVERY = TopicPartition("app.orders.redelivery", 0)
DLQ, EVENTS = "app.orders.dlq", "app.orders.events"


class BankDownError(Exception):
    """A failure that goes away."""


class Gate:
    """A handler whose runs wait until the test lets them go."""

    def __init__(self) -> None:
        self.running: dict[bytes, asyncio.Future[None]] = {}
        self.started: list[bytes] = []

    async def __call__(self, value: bytes) -> None:
        """Wait to be let go."""
        self.started.append(value)
        self.running[value] = asyncio.get_running_loop().create_future()
        try:
            await self.running[value]
        finally:
            del self.running[value]

    def let(self, value: bytes, error: Exception | None = None) -> None:
        """Let a run end."""
        if error is None:
            self.running[value].set_result(None)
        else:
            self.running[value].set_exception(error)


async def down(_value: bytes) -> None:
    """Fail."""
    raise BankDownError


async def fine(_value: bytes) -> None:
    """Succeed."""


def failing_first(times: int, started: list[int], clock: Callable[[], int]) -> Callable[[bytes], Awaitable[None]]:
    """Return a handler that fails so many times and notes when it was called."""

    async def handler(_value: bytes) -> None:
        started.append(clock())
        if len(started) <= times:
            raise BankDownError

    return handler


async def reopen(partition: MemoryPartition) -> None:
    """Make the lane give up and open again."""
    partition.lane.fail(RuntimeError("lane"))
    await partition.settle()
    await partition.advance(100)


def offsets(records: list[Record]) -> list[int]:
    """Return the origins' offsets of copies."""
    found = []
    for record in records:
        metadata = decode_metadata(record.headers)
        assert metadata is not None
        found.append(metadata.origin.offset)
    return found


# -- the whole way ----------------------------------------------------------------------------------------------------


async def test_a_failed_record_comes_back_exactly_when_due_until_it_succeeds() -> None:
    """Parked, fired, delivered again; then one event tells of it and nothing is left waiting."""
    clock, started = VirtualClock(), list[int]()
    begin_ms = clock.wall_ms()
    async with MemoryPartition(failing_first(2, started, clock.wall_ms), "5m 1h", clock=clock) as orders:
        await orders.send(b"v", key=b"k", headers=(("trace", b"1"),))
        assert orders.waiting == {"5m": 1}
        await orders.advance(299_999)
        assert (len(started), orders.waiting) == (1, {"5m": 1})
        await orders.advance(1)
        assert (len(started), orders.waiting) == (2, {"1h": 1})
        await orders.advance(3_599_999)
        assert len(started) == 2
        await orders.advance(1)
        assert [at - begin_ms for at in started] == [0, 300_000, 3_900_000]
        assert (orders.waiting, orders.dead_letters) == ({}, [])
        (event,) = orders.records(EVENTS)
        told = json.loads(event.value or b"")
        assert (event.key, told["attempt"], told["lateness_ms"]) == (b"app/orders@kq8G0bTz/0/0", 3, 0)
        for copy in (*orders.records(RETRY.topic), *orders.records(REDELIVERY.topic)):
            assert (copy.key, copy.value, copy.headers[0]) == (b"k", b"v", ("trace", b"1"))


async def test_a_record_that_never_succeeds_is_dead_after_exactly_max_attempts() -> None:
    """And rests there."""
    started: list[int] = []
    clock = VirtualClock()
    async with MemoryPartition(failing_first(99, started, clock.wall_ms), "1s 10s 1m", clock=clock) as orders:
        await orders.send(b"v")
        for ms in (1_000, 10_000, 60_000, 3_600_000):
            await orders.advance(ms)
        assert len(started) == 4
        assert [(dead.reason, dead.attempt) for dead in orders.dead_letters] == [("exhausted", 4)]
        assert (orders.waiting, len(orders.records(RETRY.topic)), len(orders.records(REDELIVERY.topic))) == ({}, 3, 3)


async def test_every_offset_is_committed_in_the_end() -> None:
    """Of the main, the retry and the redelivery topic, each past its last record."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a", b"b")
        await orders.advance(1_000)
        await orders.advance(250)
        ends = {tp: orders.transport.read(tp)[-1].offset + 1 for tp in (MAIN, RETRY, REDELIVERY)}
        assert orders.transport.offsets == ends


async def test_due_rows_fire_in_due_order_whatever_the_order_of_failure() -> None:
    """Within one due time by origin offset."""
    delays = {b"0": "10s", b"1": "1s", b"2": "5s", b"3": "1s"}
    clock = VirtualClock()

    async def handler(value: bytes) -> None:
        raise RetryLater(delays[value])

    async with MemoryPartition(handler, "1m", clock=clock) as orders:
        await orders.send(*delays)
        await orders.advance(20_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [1, 3, 2, 0]


async def test_a_row_that_is_due_sooner_wakes_the_firing_task() -> None:
    """It sleeps until the first due time that it knew."""

    async def handler(value: bytes) -> None:
        raise RetryLater(value.decode())

    async with MemoryPartition(handler, "1m") as orders:
        await orders.send(b"50s")
        await orders.advance(1_000)
        await orders.send(b"2s")
        await orders.advance(1_999)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(1)
        assert offsets(orders.records(REDELIVERY.topic)) == [1]


async def test_rows_that_waited_through_a_restart_fire_when_due() -> None:
    """The new owner finds them in the changelog and keeps their due time."""
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"v")
        orders.lane.fail(RuntimeError("lane"))
        await orders.settle()
        assert orders.waiting == {}
        await orders.advance(1_000)
        assert (orders.lane.session, orders.waiting) == (2, {"5m": 1})
        await orders.advance(298_999)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(1)
        assert len(orders.records(REDELIVERY.topic)) == 1


async def test_a_wall_clock_that_is_set_back_never_fires_early_and_one_set_ahead_never_loses() -> None:
    """Due times are wall times, looked at when firing."""
    async with MemoryPartition(down, "50s") as orders:
        await orders.send(b"v")
        orders.clock.jump_wall(-30_000)
        await orders.advance(50_000)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(30_000)
        assert len(orders.records(REDELIVERY.topic)) == 1


async def test_a_damaged_tier_record_is_buried_instead_of_parked() -> None:
    """It has no due time that could be believed; others are parked."""
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"a")
        (tier,) = orders.records(RETRY.topic)
        spoilt = tuple((name, b"x" if name == RETRY_ATTEMPT else value) for name, value in tier.headers)
        orders.transport.append(RETRY, b"k", b"damaged", spoilt)
        await orders.send(b"b")
        assert orders.waiting == {"5m": 2}
        assert [dead.reason for dead in orders.dead_letters] == ["damaged"]
        assert orders.records(DLQ)[0].value == b"damaged"


async def test_a_row_that_cannot_be_read_is_buried_and_holds_nothing_up() -> None:
    """It leaves the table, and what is due with it fires."""
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"a", b"b")
        assert orders.transport.pending is not None
        (bad, _), _ = orders.transport.pending.page(None, 2)
        orders.transport.pending._rows[bad] = orders.transport.pending._rows[bad]._replace(value=b"\xff rubbish")
        await orders.advance(300_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [1]
        assert [(dead.reason, dead.origin.offset) for dead in orders.dead_letters[:1]] == [("damaged", 0)]
        assert orders.transport.pending.get(bad) is None


# -- order and concurrency --------------------------------------------------------------------------------------------


async def test_outcomes_are_committed_in_offset_order_however_handlers_end() -> None:
    """What a record publishes is not visible before everything ahead of it has an outcome."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=3) as orders:
        await orders.send(b"a", b"b", b"c", b"d")
        assert gate.started == [b"a", b"b", b"c"]
        gate.let(b"c", BankDownError())
        gate.let(b"b")
        await orders.advance(1_000)
        assert (gate.started, orders.transport.offsets[MAIN], orders.records(RETRY.topic)) == (
            [b"a", b"b", b"c", b"d"],
            0,
            [],
        )
        gate.let(b"a", BankDownError())
        await orders.settle()
        assert (orders.transport.offsets[MAIN], offsets(orders.records(RETRY.topic))) == (3, [0, 2])
        gate.let(b"d")
        await orders.settle()
        await orders.advance(1_000)
        assert orders.transport.offsets[MAIN] == 4


async def test_no_more_than_concurrency_handlers_run_at_once() -> None:
    """First deliveries and redeliveries have a share each."""
    gate = Gate()
    async with MemoryPartition(gate, "1s", concurrency=2) as orders:
        await orders.send(b"a", b"b", b"c", b"d", b"e", b"f")
        for value in (b"a", b"b"):
            gate.let(value, BankDownError())
        await orders.settle()
        assert sorted(gate.running) == [b"c", b"d"]
        await orders.advance(1_000)
        assert gate.started == [b"a", b"b", b"c", b"d", b"a", b"b"]
        assert sorted(gate.running) == [b"a", b"b", b"c", b"d"]


async def test_parking_and_redelivery_never_queue_behind_first_deliveries() -> None:
    """With every handler of the main topic busy, what failed before is parked, fired and delivered again."""
    gate = Gate()
    async with MemoryPartition(gate, "1s", concurrency=1) as orders:
        await orders.send(b"bad", *(b"slow%d" % n for n in range(5)))
        gate.let(b"bad", BankDownError())
        await orders.settle()
        assert (gate.started, orders.waiting) == ([b"bad", b"slow0"], {"1s": 1})
        await orders.advance(1_000)
        assert gate.started == [b"bad", b"slow0", b"bad"]
        gate.let(b"bad")
        await orders.settle()
        assert len(orders.records(EVENTS)) == 1


async def test_one_slow_record_does_not_stop_other_partitions() -> None:
    """They share the handlers of their handler, and nothing else."""
    gate = Gate()
    pools = (DeliveryPool(2, "first"), DeliveryPool(2, "again"))
    clock = VirtualClock()
    for pool in pools:
        pool.start()
    async with (
        MemoryPartition(gate, "1s", concurrency=2, partition=0, clock=clock, pools=pools) as slow,
        MemoryPartition(gate, "1s", concurrency=2, partition=1, clock=clock, pools=pools) as quick,
    ):
        await slow.send(b"slow")
        for n in range(5):
            await quick.send(b"%d" % n)
            gate.let(b"%d" % n, BankDownError() if n == 0 else None)
            await quick.settle()
        await quick.advance(1_000)
        gate.let(b"0")
        await quick.settle()
        assert quick.transport.offsets[TopicPartition("orders", 1)] == 5
        assert len(quick.records(EVENTS)) == 1
        assert (slow.transport.offsets[MAIN], list(gate.running)) == (0, [b"slow"])
    for pool in pools:
        await pool.stop()


async def test_a_handler_that_cancels_itself_does_not_cost_a_worker_of_the_pool() -> None:
    """The partition goes on."""

    async def handler(value: bytes) -> None:
        if value == b"bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with MemoryPartition(handler, "5m", concurrency=1) as orders:
        await orders.send(b"bad", b"good")
        await orders.advance(250)
        assert (orders.transport.offsets[MAIN], orders.waiting) == (2, {"5m": 1})


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
async def test_whatever_handlers_raise_the_pool_keeps_its_worker_and_the_lane_its_session(plain: bool) -> None:
    """Errors that end programs, tasks and generators are failures like any other."""
    errors: list[BaseException] = [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError("by itself"),
        StopIteration(),
        StopAsyncIteration(),
        BaseException("base"),
        BaseExceptionGroup("group", [SystemExit(1), KeyboardInterrupt()]),
        RunAbortedError(),
        TimeoutError(),
    ]
    left = list(errors)

    def fail(_value: bytes) -> None:
        if left:
            raise left.pop(0)

    async def fail_async(value: bytes) -> None:
        fail(value)

    async with MemoryPartition(fail if plain else fail_async, "5m", concurrency=1) as orders:
        await orders.send(*[b"v"] * (len(errors) + 1))
        await orders.until(lambda: orders.engine.in_flight == 0)
        await orders.advance(1_000)
        assert orders.transport.offsets[MAIN] == len(errors) + 1
        assert offsets(orders.records(RETRY.topic)) == list(range(len(errors)))
        assert (orders.lane.session, orders.waiting) == (1, {"5m": len(errors)})


async def test_an_outcome_that_comes_after_its_session_counts_for_nothing_in_the_next_one() -> None:
    """The same offset is in flight again: the old run must not settle it."""
    runs: list[asyncio.Future[None]] = []

    async def handler(_value: bytes) -> None:
        runs.append(asyncio.get_running_loop().create_future())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(runs[-1])
            return
        await asyncio.shield(runs[-1])

    async with MemoryPartition(handler, "5m", concurrency=2) as orders:
        await orders.send(b"a")
        await reopen(orders)
        assert (len(runs), orders.lane.session, orders.engine.in_flight) == (2, 2, 1)
        runs[0].set_result(None)
        await orders.settle()
        await orders.advance(1_000)
        assert (orders.engine.in_flight, orders.transport.offsets[MAIN]) == (1, 0)
        runs[1].set_exception(BankDownError())
        await orders.settle()
        assert offsets(orders.records(RETRY.topic)) == [0]


async def test_plain_functions_run_in_threads_and_settle_the_same() -> None:
    """The loop goes on meanwhile."""

    def handler(value: bytes) -> None:
        if value == b"bad":
            raise BankDownError

    async with MemoryPartition(handler, "5m", concurrency=4) as orders:
        await orders.send(b"bad", b"good", b"bad")
        await orders.until(lambda: orders.waiting == {"5m": 2})


# -- room -------------------------------------------------------------------------------------------------------------


async def test_records_in_flight_are_bounded_in_number() -> None:
    """The head that is not settled holds everything behind it."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=9, max_in_flight=3) as orders:
        await orders.send(*(b"%d" % n for n in range(5)))
        assert (gate.started, orders.engine.in_flight, orders.engine.room(MAIN)) == ([b"0", b"1", b"2"], 3, 0)
        gate.let(b"1")
        await orders.settle()
        assert orders.engine.room(MAIN) == 0
        gate.let(b"0")
        await orders.settle()
        assert (gate.started, orders.engine.in_flight) == ([b"0", b"1", b"2", b"3", b"4"], 3)


async def test_records_in_flight_are_bounded_in_bytes() -> None:
    """Nothing comes in while what is held is over the bound."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=9, max_in_flight_bytes=1_000) as orders:
        for n in range(4):
            await orders.send(b"%d" % n + b"x" * 500)
        assert (len(gate.started), orders.engine.room(MAIN)) == (2, 0)
        gate.let(gate.started[0])
        await orders.settle()
        assert (gate.started[2][:1], orders.engine.room(MAIN)) == (b"2", 0)


async def test_there_is_no_room_while_the_lane_is_not_open_or_full() -> None:
    """Records stay where they are: in the source."""
    async with MemoryPartition(fine, "5m", limits=LaneLimits(backlog=2)) as orders:
        assert [orders.engine.room(tp) for tp in orders.engine.sources] == [2, 2, 2]
        gate = orders.transport.pause(Step.COMMIT)
        await orders.send(*(b"%d" % n for n in range(50)))
        await orders.advance(250)
        assert [orders.engine.room(tp) for tp in orders.engine.sources] == [0, 0, 0]
        assert len(orders.observer.of(Event.SUCCEEDED)) == 0
        gate.set()
        for _ in range(50):
            await orders.advance(250)
        assert orders.transport.offsets[MAIN] == 50
        orders.lane.fail(RuntimeError())
        await orders.settle()
        assert [orders.engine.room(tp) for tp in orders.engine.sources] == [0, 0, 0]


# -- firing -----------------------------------------------------------------------------------------------------------


async def test_a_row_is_in_one_turn_only_while_its_firing_is_not_committed() -> None:
    """Claimed when queued: whatever wakes the firing task meanwhile finds it taken."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        gate = orders.transport.pause(Step.COMMIT)
        await orders.advance(1_000)
        for _ in range(5):
            orders.engine._fire_wake.set()
            await orders.advance(10)
        assert len(orders.engine._claimed) == 1
        gate.set()
        await orders.settle()
        assert offsets(orders.records(REDELIVERY.topic)) == [0]
        assert len(orders.engine._claimed) == 0


async def test_a_firing_that_was_not_committed_fires_again_after_the_lane_is_open() -> None:
    """Once: the claim ended with the session."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"))
        await orders.advance(1_000)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(100)
        assert offsets(orders.records(REDELIVERY.topic)) == [0]
        assert [dead.attempt for dead in orders.dead_letters] == [2]


async def test_a_firing_whose_commit_was_not_acknowledged_is_not_repeated() -> None:
    """It is on the topic and out of the table, whatever the lane was told."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"), durable=True)
        await orders.advance(1_000)
        await orders.advance(100)
        await orders.advance(60_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [0]
        assert [dead.attempt for dead in orders.dead_letters] == [2]


async def test_firing_stays_a_bounded_number_of_records_ahead_of_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood waits in the table, in due order, not on the topic."""
    monkeypatch.setattr(engine_partition, "FIRE_AHEAD", 5)
    monkeypatch.setattr(engine_partition, "FIRE_LIMIT", 3)
    gate = Gate()
    async with MemoryPartition(gate, "1s", concurrency=2) as orders:
        for n in range(12):
            await orders.send(b"%02d" % n)
            gate.let(b"%02d" % n, BankDownError())
            await orders.settle()
        await orders.advance(10_000)
        assert (len(orders.records(REDELIVERY.topic)), sum(orders.waiting.values())) == (5, 7)
        await orders.advance(60_000)
        assert len(orders.records(REDELIVERY.topic)) == 5
        gate.let(b"00")
        await orders.settle()
        assert (len(orders.records(REDELIVERY.topic)), len(orders.engine._ahead)) == (6, 5)
        while gate.running:
            gate.let(next(iter(gate.running)))
            await orders.settle()
        assert offsets(orders.records(REDELIVERY.topic)) == list(range(12))
        assert (orders.waiting, len(orders.engine._ahead)) == ({}, 0)


async def test_a_firing_is_bounded_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood becomes several turns."""
    monkeypatch.setattr(engine_partition, "FIRE_LIMIT", 3)
    async with MemoryPartition(down, "1s 1h", limits=LaneLimits(turns=1)) as orders:
        await orders.send(*(b"%d" % n for n in range(7)))
        before = len(orders.transport.batches)
        await orders.advance(1_000)
        fired = [
            count
            for batch in orders.transport.batches[before:]
            if (count := sum(out.topic == REDELIVERY.topic for out in batch.publishes))
        ]
        assert fired == [3, 3, 1]


async def test_a_full_lane_delays_firing_and_nothing_is_forgotten() -> None:
    """Room wakes the firing task."""
    async with MemoryPartition(down, "1s", limits=LaneLimits(backlog=1)) as orders:
        await orders.send(b"a")
        gate = orders.transport.pause(Step.COMMIT)
        await orders.send(b"b")
        await orders.advance(1_000)
        gate.set()
        await orders.settle()
        await orders.advance(1_000)
        await orders.advance(1_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [0, 1]


async def test_a_table_that_cannot_be_read_makes_the_lane_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Firing must not just end: the records would wait for ever behind a lane that looks open."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        pending = orders.transport.pending

        def broken(*_: Any, **_named: Any) -> Any:
            raise StoreBrokenError("/data/0", "checksum mismatch")

        monkeypatch.setattr(pending, "due", broken)
        await orders.advance(1_000)
        assert "checksum mismatch" in str(orders.lane.last_error)
        await orders.advance(100)
        assert offsets(orders.records(REDELIVERY.topic)) == [0]


# -- sessions ---------------------------------------------------------------------------------------------------------


class Stubborn:
    """A handler that swallows its cancellation until it is let go, and then fails."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.over = asyncio.Event()

    async def __call__(self, value: bytes) -> None:
        """Go on."""
        self.started.append(value)
        while not self.over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.over.wait()
        raise BankDownError


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    """A stubborn handler that ends with the test."""
    handler = Stubborn()
    yield handler
    handler.over.set()


async def test_outcomes_of_an_ended_session_are_ignored(stubborn: Stubborn) -> None:
    """A handler that ends late changes nothing; its record is read and delivered again."""
    async with MemoryPartition(stubborn, "5m", concurrency=2) as orders:
        try:
            await orders.send(b"a")
            await reopen(orders)
            assert (orders.lane.session, stubborn.started) == (2, [b"a", b"a"])
        finally:
            stubborn.over.set()
        await orders.settle()
        assert offsets(orders.records(RETRY.topic)) == [0]
        assert orders.waiting == {"5m": 1}


async def test_running_handlers_are_cancelled_when_their_session_ends() -> None:
    """And jobs that had not begun never begin."""
    gate = Gate()
    async with MemoryPartition(gate, "5m", concurrency=1) as orders:
        await orders.send(b"a", b"b")
        gate_of_release = orders.transport.pause(Step.PROVE)
        await reopen(orders)
        assert (gate.running, gate.started, orders.engine.in_flight) == ({}, [b"a"], 0)
        gate_of_release.set()
        await orders.settle()
        assert gate.started == [b"a", b"a"]


async def test_records_of_an_ended_session_are_not_taken_in() -> None:
    """They were fetched before: they come again."""
    async with MemoryPartition(fine, "5m") as orders:
        old = orders.lane.session
        await reopen(orders)
        assert orders.lane.session == old + 1
        orders.engine.accept(MAIN, old, [Record("orders", 0, 0, 1, None, b"v")])
        assert orders.engine.in_flight == 0


async def test_a_fault_of_ours_in_a_delivery_neither_ends_the_pool_nor_skips_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lane opens again and reads the record again."""
    real, calls = engine_pool.deliver, list[int]()

    async def broken(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault of ours")
        return await real(*arguments)

    monkeypatch.setattr(engine_pool, "deliver", broken)
    async with MemoryPartition(down, "5m") as orders:
        await orders.send(b"a")
        assert "a fault of ours" in str(orders.lane.last_error)
        await orders.advance(100)
        assert (len(calls), orders.waiting) == (2, {"5m": 1})


async def test_a_source_that_delivers_out_of_order_is_refused() -> None:
    """Nothing is committed past what it skipped."""
    async with MemoryPartition(Gate(), "5m") as orders:
        orders.accept(Record("orders", 0, 5, 1, None, b"v"))
        with pytest.raises(ValueError, match="must arrive in order"):
            orders.accept(Record("orders", 0, 5, 1, None, b"v"))


# -- the end ----------------------------------------------------------------------------------------------------------


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


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_progress_is_told_once_a_minute_and_at_the_end() -> None:
    """Counts by record, ranges without gaps."""

    async def handler(value: bytes) -> None:
        if value == b"bad":
            raise BankDownError

    async with MemoryPartition(handler, "1h") as orders:
        await orders.send(b"good", b"bad")
        await orders.advance(59_999)
        await orders.send(b"good")
        assert orders.records(EVENTS) == []
        await orders.advance(1)
        await orders.send(b"good")
        await orders.send(b"bad")
        await orders.finish()
        told = [json.loads(event.value or b"") for event in orders.records(EVENTS)]
        assert [(t["from_offset"], t["to_offset"], t["received"], t["first_try_ok"], t["failed"]) for t in told] == [
            (0, 4, 4, 3, 1),
            (4, 5, 1, 0, 1),
        ]


async def test_observers_hear_of_each_step_with_its_facts() -> None:
    """In the order of a record's life."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        await orders.advance(1_250)
        told = [(o.event, o.attempt, o.tier, o.reason) for o in orders.observer.seen if o.failure_id is not None]
        assert told == [
            (Event.FAILED, 1, None, None),
            (Event.SCHEDULED, 1, "1s", None),
            (Event.PARKED, 1, "1s", None),
            (Event.FIRED, 1, "1s", None),
            (Event.FAILED, 2, None, None),
            (Event.DEAD, 2, None, "exhausted"),
        ]
        (fired,) = orders.observer.of(Event.FIRED)
        assert fired.lateness_ms == 250
        (parked,) = orders.observer.of(Event.PARKED)
        assert orders.transport.changelog[0].key[:8] == (parked.due_at_ms or 0).to_bytes(8, "big")
        assert parse_row_key(orders.transport.changelog[0].key).origin_offset == 0

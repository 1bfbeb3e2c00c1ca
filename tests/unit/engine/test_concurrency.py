"""A partition whole: order of outcomes, concurrency, room."""

from __future__ import annotations

import asyncio

import pytest
from doubles import EVENTS, MAIN, RETRY, BankDownError, Gate, fine, offsets, pass_time, serving

from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import RunAbortedError
from retryapp.engine.lane.lane import LaneLimits
from retryapp.engine.partition.progress import OffsetWindow
from retryapp.ports import Event, TopicPartition
from retryapp.testing import MemoryPartition, Step, VirtualClock

# -- order and concurrency --------------------------------------------------------------------------------------------


async def test_outcomes_are_committed_in_offset_order_however_handlers_end() -> None:
    """For a short time what a record publishes waits for those before it; `test_beyond` has the rest."""
    async with serving(Gate(), "5m", b"a", b"b", b"c", b"d", concurrency=3) as (orders, gate):
        assert gate.started == [b"a", b"b", b"c"]
        gate.let(b"c", BankDownError())
        await gate.end(orders, b"b")
        assert (gate.started, orders.transport.offsets[MAIN], orders.records(RETRY.topic)) == (
            [b"a", b"b", b"c", b"d"],
            0,
            [],
        )
        await gate.end(orders, b"a", BankDownError())
        assert (orders.transport.offsets[MAIN], offsets(orders.records(RETRY.topic))) == (3, [0, 2])
        await gate.end(orders, b"d")
        await orders.advance(1_000)
        assert orders.transport.offsets[MAIN] == 4


async def test_no_more_than_concurrency_handlers_run_at_once() -> None:
    """First deliveries and redeliveries have a share each."""
    async with serving(Gate(), "1s", b"a", b"b", b"c", b"d", b"e", b"f", concurrency=2) as (orders, gate):
        for value in (b"a", b"b"):
            gate.let(value, BankDownError())
        await orders.settle()
        assert sorted(gate.running) == [b"c", b"d"]
        await orders.advance(1_000)
        assert gate.started == [b"a", b"b", b"c", b"d", b"a", b"b"]
        assert sorted(gate.running) == [b"a", b"b", b"c", b"d"]


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
            await gate.end(quick, b"%d" % n, BankDownError() if n == 0 else None)
        await quick.advance(1_000)
        await gate.end(quick, b"0")
        assert quick.transport.offsets[TopicPartition("orders", 1)] == 5
        assert len(quick.records(EVENTS)) == 1
        assert (slow.transport.offsets[MAIN], list(gate.running)) == (0, [b"slow"])
    for pool in pools:
        await pool.stop()


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

    async with serving(fail if plain else fail_async, "5m", *[b"v"] * (len(errors) + 1), concurrency=1) as (orders, _):
        await orders.until(lambda: orders.engine.in_flight == 0)
        await orders.advance(1_000)
        assert orders.transport.offsets[MAIN] == len(errors) + 1
        assert offsets(orders.records(RETRY.topic)) == list(range(len(errors)))
        assert (orders.lane.session, orders.waiting) == (1, {"5m": len(errors)})


# -- room -------------------------------------------------------------------------------------------------------------


async def test_records_in_flight_are_bounded_in_number() -> None:
    """The head that is not settled holds everything behind it."""
    async with serving(Gate(), "5m", *(b"%d" % n for n in range(5)), concurrency=3, max_in_flight=3) as (orders, gate):
        assert (gate.started, orders.engine.in_flight, orders.engine.room(MAIN)) == ([b"0", b"1", b"2"], 3, 0)
        await gate.end(orders, b"1")
        assert orders.engine.room(MAIN) == 0
        await gate.end(orders, b"0")
        assert (gate.started, orders.engine.in_flight) == ([b"0", b"1", b"2", b"3", b"4"], 3)


@pytest.mark.parametrize("what", ["key", "value", "headers"])
async def test_whatever_a_record_holds_counts(what: str) -> None:
    """A partition of small values may have large keys or headers."""
    large = b"x" * 2_000
    async with MemoryPartition(Gate(), "5m", max_in_flight_bytes=2_000) as orders:
        await orders.send(
            large if what == "value" else b"v",
            key=large if what == "key" else None,
            headers=(("trace", large),) if what == "headers" else (),
        )
        assert orders.engine.room(MAIN) == 0
        assert orders.engine.room_bytes(MAIN) < 0


async def test_the_release_lag_is_the_age_of_the_oldest_record_in_flight() -> None:
    """What finished behind it waits for it."""
    async with serving(Gate(), "5m", concurrency=2) as (orders, gate):
        seen = [orders.engine.release_lag_ms]
        await orders.send(b"a")
        await orders.advance(3_000)
        await orders.send(b"b")
        await orders.advance(1_000)
        await gate.end(orders, b"b")
        seen.append(orders.engine.release_lag_ms)
        await gate.end(orders, b"a")
        seen.append(orders.engine.release_lag_ms)
        assert seen == [0, 4_000, 0]


async def test_there_is_no_room_while_the_lane_is_not_open_or_full() -> None:
    """Records stay where they are: in the source."""
    async with MemoryPartition(fine, "5m", limits=LaneLimits(backlog=2)) as orders:
        assert orders.engine.room(MAIN) == 2
        gate = orders.transport.pause(Step.COMMIT)
        await orders.send(*(b"%d" % n for n in range(50)))
        await orders.advance(250)
        assert orders.engine.room(MAIN) == 0
        assert len(orders.observer.of(Event.SUCCEEDED)) == 0
        gate.set()
        await pass_time(orders, 12_500, 250)
        assert orders.transport.offsets[MAIN] == 50
        orders.lane.fail(RuntimeError())
        await orders.settle()
        assert orders.engine.room(MAIN) == 0


# -- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 4, 5])
def test_a_record_out_of_order_is_refused(offset: int) -> None:
    """Twice the same, or an older one: the source is at fault, and skipping would lose records."""
    made: OffsetWindow[str] = OffsetWindow()
    made.add(5)
    with pytest.raises(ValueError, match=f"offset {offset} after 5"):
        made.add(offset)

"""Handlers that take lists: what is in a batch, and what becomes of each record when some of it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Owner, make_context, make_record, pass_time, running_clock, serving
from listed import Listed, failed, out
from suspected import found, names

from retryapp.core.batch import Batch
from retryapp.core.errors import InvalidDurationError, InvalidSettingError, LatePublishError
from retryapp.core.policy import RetryPolicy
from retryapp.engine.delivery import batches
from retryapp.engine.delivery.batches import BatchPool
from retryapp.engine.delivery.run import Outcome, Run
from retryapp.engine.handler.handler import Delivery, Handler, Order
from retryapp.engine.handler.publish import LateFailError
from retryapp.engine.lane.rounds import ROUND_S
from retryapp.ports import Event
from retryapp.testing import MemoryDestinations, MemoryPartition, VirtualClock

BATCH = Batch(4, "50ms")


class Plain:
    """A handler of lists that takes no deliveries, and marks none."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []

    async def __call__(self, values: list[bytes]) -> None:
        """Note what is in it."""
        self.calls.append(values)


async def test_a_batch_is_full_or_has_waited() -> None:
    """Up to so many at once; fewer after the wait of the first one."""
    async with serving(Listed(), "1s", *names(6), batch=BATCH) as (orders, handler):
        assert handler.calls == [names(4)]
        await orders.advance(49)
        assert len(handler.calls) == 1
        await orders.send(b"x")
        await orders.advance(1)
        assert handler.calls[1:] == [[b"4", b"5", b"x"]]
        await orders.send(b"y", b"z", b"v", b"w")
        assert handler.calls[2:] == [[b"y", b"z", b"v", b"w"]]
        assert (out(orders), orders.engine.in_flight) == ([*names(6), b"x", b"y", b"z", b"v", b"w"], 0)


async def test_only_what_is_marked_has_failed() -> None:
    """It waits alone, with what it was; the others are done, and published."""
    async with serving(Listed(), "1s", b"a", b"fail b", b"c", b"fail d", batch=BATCH) as (orders, handler):
        assert (out(orders), orders.waiting) == ([b"a", b"c"], {"1s": 2})
        assert sum(orders.handler.durations.counts) == 1  # calls, not records
        assert failed(orders) == {b"fail b": (1, 1), b"fail d": (1, 1)}
        await orders.to_rest()
        assert handler.calls == [[b"a", b"fail b", b"c", b"fail d"], [b"fail b", b"fail d"]]
        assert [delivery.attempt for delivery in handler.deliveries[1]] == [2, 2]
        assert [(letter.attempt, letter.error_message) for letter in orders.dead_letters] == [(2, "marked")] * 2


async def test_what_took_too_long_runs_alone_next() -> None:
    """All of it: nobody knows who hangs. Alone the one that hangs costs nobody anything."""
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        if b"hangs" in values:
            await asyncio.sleep(60)

    async with MemoryPartition(handler, RetryPolicy("1s*2", timeout="10s"), batch=BATCH) as orders:
        await orders.send(b"a", b"hangs", b"c", b"d")
        await orders.advance(10_000)
        assert orders.waiting == {"1s": 4}
        await orders.to_rest()
        assert calls[1:] == [[b"a"], [b"hangs"], [b"c"], [b"d"], [b"hangs"]]
        assert [letter.attempt for letter in orders.dead_letters] == [3]


async def test_what_has_an_outcome_keeps_it_when_the_time_is_up() -> None:
    """Halves that went well before are done; the rest has failed, and no call lasts longer than one deadline."""
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        await asyncio.sleep(4)
        if b"c" in values:
            raise BankDownError

    async with serving(handler, RetryPolicy("1h", timeout="10s"), b"a", b"b", b"c", b"d", batch=BATCH) as (orders, _):
        await pass_time(orders, 10_000, 1_000)
        assert calls == [[b"a", b"b", b"c", b"d"], [b"a", b"b"], [b"c", b"d"]]
        assert (set(failed(orders)), orders.engine.in_flight) == ({b"c", b"d"}, 0)


SLOW = [(batches, "unpack"), (Handler, "decode"), (batches, "outcome_of")]


class Steps:
    """Has a step of each record take a millisecond, and counts them."""

    def __init__(self) -> None:
        self.clock: VirtualClock
        self.count = self.most = self._in_round = 0

    def step(self) -> None:
        self.clock.advance(1)
        self.count += 1
        self._in_round += 1
        self.most = max(self.most, self._in_round)

    async def send(self, orders: MemoryPartition, until: Callable[[], bool]) -> None:
        """Send a hundred records, and look at each round of the event loop; `most` steps were in one of them."""
        self.clock, sending = orders.clock, asyncio.create_task(orders.send(*names(100)))
        while not (until() or sending.done()):
            self._in_round = 0
            await asyncio.sleep(0)
        await orders.settle()


@pytest.fixture(params=SLOW, ids=lambda each: each[1])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Make a step slow."""
    holder, name = request.param
    real, steps = getattr(holder, name), Steps()

    def take(*given: Any) -> Any:
        steps.step()
        return real(*given)

    monkeypatch.setattr(holder, name, take)
    return steps


async def test_a_long_list_leaves_the_event_loop_to_others(slow: Steps) -> None:
    """Ten thousand records take seconds: others run in between, before the call and after it."""
    async with MemoryPartition(Plain(), "1s", batch=Batch(100)) as orders:
        await slow.send(orders, lambda: slow.count == 100)
        assert slow.most == round(ROUND_S * 1_000)
        await orders.to_rest()
        assert (slow.count, orders.transport.offsets[MAIN]) == (100, 100)


async def test_a_session_that_ends_within_a_long_list_leaves_the_rest_without_an_outcome(slow: Steps) -> None:
    """The next one has all of it again, and its runner goes on."""
    handler = Plain()
    async with MemoryPartition(handler, "1s", batch=Batch(100)) as orders:
        await slow.send(orders, lambda: slow.count >= 50 and orders.lane.fail(RuntimeError("lane")) is None)
        assert slow.count < 70
        await orders.advance(200)
        await orders.to_rest()
        assert (handler.calls[-1], orders.transport.offsets[MAIN]) == (names(100), 100)
        assert (orders.waiting, orders.handler.orphans.total) == ({}, 0)


@pytest.mark.parametrize("slow", SLOW[2:], indirect=True)
async def test_a_time_out_after_the_call_comes_too_late(slow: Steps) -> None:
    """The work of a long list is done: it would only be done twice."""
    handler = Plain()
    async with MemoryPartition(handler, "1s; timeout=50ms", batch=Batch(100)) as orders:
        await slow.send(orders, lambda: slow.count == 100)
        await orders.to_rest()
        assert (handler.calls, slow.count, orders.handler.orphans.total) == ([names(100)], 100, 0)


async def test_a_batch_that_does_not_end_becomes_one_orphan() -> None:
    """All its records have failed, and the runner is replaced."""
    end = asyncio.Event()
    calls: list[list[bytes]] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(values)
        while b"a" in values and not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with serving(handler, RetryPolicy("1h", timeout="10s"), b"a", b"b", batch=BATCH) as (orders, _):
        await orders.advance(50)
        await orders.advance(10_000)
        await orders.advance(2_000)
        assert (orders.waiting, len(orders.handler.orphans)) == ({"1h": 2}, 1)
        await orders.send(b"c")
        await orders.advance(50)
        assert calls == [[b"a", b"b"], [b"c"]]
        end.set()
        await orders.settle()
        assert len(orders.handler.orphans) == 0


async def test_what_cannot_be_decoded_or_published_is_its_own_failure() -> None:
    """The others of its batch are done."""

    async def handler(values: list[int], deliveries: list[Delivery]) -> None:
        calls.append(values)
        for value, delivery in zip(values, deliveries, strict=True):
            delivery.publish("out" if value else "nowhere", b"%d" % value)

    calls: list[list[int]] = []
    topics = MemoryDestinations({"out": 1})
    async with MemoryPartition(handler, "1h", batch=BATCH, value_type=int, destinations=topics) as orders:
        await orders.send(b"1", b"odd", b"0", b"2")
        assert (calls, out(orders)) == ([[1, 0, 2]], [b"1", b"2"])
        assert [letter.reason for letter in orders.dead_letters] == ["undecodable"]
        assert set(failed(orders)) == {b"0"}


async def test_a_drain_begins_what_is_gathered_and_tries_no_halves() -> None:
    """What has no outcome then costs no attempt: the next owner has it."""
    async with serving(Listed(), "1h", b"a", b"b", batch=BATCH) as (orders, handler):
        await orders.finish()
        assert (handler.calls, out(orders)) == ([[b"a", b"b"]], [b"a", b"b"])
    async with serving(handler, "1h", b"raise c", b"d", batch=BATCH, transport=orders.transport) as (orders, _):
        await orders.finish()
        assert (handler.calls[1:], failed(orders)) == ([[b"raise c", b"d"]], {})
    async with MemoryPartition(handler, "1h", batch=BATCH, transport=orders.transport) as orders:
        await orders.advance(50)
        assert handler.calls[2:] == [[b"raise c", b"d"], [b"raise c"], [b"d"]]
        assert failed(orders) == {b"raise c": (1, 2)}


async def test_suspects_run_alone() -> None:
    """They may kill the worker, and nobody else is to blame."""
    async with serving(Listed(), "1h", batch=BATCH, transport=found("g4:old@0-4", *names(4))) as (orders, handler):
        await pass_time(orders, 4_000, 1_000)
        assert sorted(handler.calls) == [[value] for value in names(4)]


async def test_due_rows_come_in_batches_too() -> None:
    """As many as are there, beyond the rows of one look at the table."""
    async with serving(Listed(), "1s", batch=Batch(150), max_in_flight=300) as (orders, handler):
        await orders.send(*(b"fail %d" % n for n in range(150)))
        await orders.advance(1_000)
        assert [len(call) for call in handler.calls] == [150, 150]


async def test_errors_that_were_marked_may_be_returned_too() -> None:
    """The whole list had failed, and what was done was done again, in halves."""
    calls = []

    async def handle(value: bytes) -> None:
        if value == b"b":
            raise BankDownError

    async def handler(values: list[bytes], deliveries: list[Delivery]) -> list[BaseException | None]:
        calls.append(len(values))
        results = await asyncio.gather(*map(handle, values), return_exceptions=True)
        for delivery, result in zip(deliveries, results, strict=True):
            if result is not None:
                delivery.fail(result)
        return results

    async with serving(handler, "1h", b"a", b"b", b"c", b"d", batch=BATCH) as (orders, _):
        await orders.until(lambda: failed(orders) and not orders.engine.in_flight)
        assert (set(failed(orders)), calls) == ({b"b"}, [4])


async def test_a_plain_function_takes_lists_in_a_thread() -> None:

    def handler(values: list[bytes], deliveries: list[Delivery]) -> None:
        deliveries[values.index(b"b")].fail(BankDownError())

    async with serving(handler, "1h", b"a", b"b", b"c", b"d", batch=BATCH) as (orders, _):
        await orders.until(lambda: failed(orders) and not orders.engine.in_flight)
        assert set(failed(orders)) == {b"b"}


async def test_a_thread_that_hangs_counts_whatever_it_does_to_its_lists() -> None:
    """They are its own; which records hang is known without them."""
    end = threading.Event()

    def handler(values: list[bytes], deliveries: list[Delivery]) -> None:
        while values:
            values.pop()
            deliveries.pop()
        end.wait(30)

    async with serving(handler, RetryPolicy("1h", timeout="10s"), b"a", b"b", batch=Batch(2)) as (orders, _):
        await orders.advance(10_000)
        assert (len(orders.handler.orphans), orders.waiting) == (1, {"1h": 2})
        end.set()
        await orders.until(lambda: not len(orders.handler.orphans))


async def test_a_partition_may_submit_more_while_its_list_is_made() -> None:
    """A record that does not begin may let others go: none of them is lost, nor is the runner."""

    class Ending(Owner):
        def alive(self, run: Run) -> bool:
            return run.session == 1

        def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
            super().ended(run, outcome, fault)
            if self.ends == 1:
                pool.submit(Run(self, context, make_record(), session=1))

    calls: list[int] = []

    async def handler(values: list[bytes]) -> None:
        calls.append(len(values))

    context = make_context(handler, batch=Batch(2))
    pool, owner = BatchPool(Batch(2), 1, "deliver"), Ending()
    pool.start()
    for _ in range(2):
        pool.submit(Run(owner, context, make_record()))
    for _ in range(3):
        await asyncio.sleep(0)
        running_clock().advance(50)
    for _ in range(20):
        await asyncio.sleep(0)
    runners = [runner.done() for runner in pool._runners]
    await pool.stop()
    assert (runners, calls, pool._queues) == ([False], [1], {})


async def test_a_pool_that_stops_waits_for_no_more_records() -> None:
    """A list that was still gathered would begin in the pool that starts next, for a partition that has gone."""
    context = make_context(Listed(), batch=BATCH)
    pool, owner = BatchPool(BATCH, 1, "deliver"), Owner()
    pool.start()
    pool.submit(Run(owner, context, make_record()))
    timer = pool._gathering[owner]
    await pool.stop()
    assert timer.cancelled()
    running_clock().advance(50)
    await asyncio.sleep(0)
    assert not pool._turns


async def test_a_mark_that_comes_too_late_or_is_no_error_is_told() -> None:
    """Whoever marks a record whose fate is sealed has to know."""
    async with serving(Listed(), "1h", *names(4), batch=BATCH) as (_, handler):
        with pytest.raises(LateFailError):
            handler.deliveries[0][0].fail(BankDownError())
        with pytest.raises(TypeError):
            handler.deliveries[0][0].fail("down")  # type: ignore[arg-type]


async def test_a_call_that_has_raised_takes_nothing_more() -> None:
    """A task that it left behind is told so, whatever the halves come to."""
    async with serving(Listed(), "1h", b"raise a", b"b", batch=Batch(2)) as (orders, handler):
        assert [len(call) for call in handler.calls] == [2, 1, 1]
        for delivery in handler.deliveries[0]:
            with pytest.raises(LatePublishError):
                delivery.publish("out", b"late")
        assert out(orders) == [b"b"]


async def test_a_mark_that_was_never_raised_names_the_line_that_made_it() -> None:
    """Not one of ours: people and causes go by it. What was raised keeps its own line."""

    async def handler(values: list[bytes], deliveries: list[Delivery]) -> None:
        deliveries[0].fail(BankDownError("marked"))
        try:
            raise BankDownError("raised")  # noqa: TRY301 - as a user's code does
        except BankDownError as error:
            deliveries[1].fail(error)

    async with serving(handler, "1h", b"a", b"b", batch=Batch(2)) as (orders, _):
        first = handler.__code__.co_firstlineno
        seen = [seen.place for seen in orders.observer.seen if seen.event is Event.FAILED]
        assert [str(place).partition(" in ")[0] for place in seen] == [
            f"test_batches.py:{first + 1}", f"test_batches.py:{first + 3}",
        ]  # fmt: skip


async def test_a_handler_of_one_record_may_mark_it() -> None:
    """As if it had raised, also for tries in place."""
    seen: list[int] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery.hot_attempt)
        if len(seen) < 3:
            delivery.fail(BankDownError())

    async with serving(handler, RetryPolicy("1h", hot="50ms"), b"a") as (orders, _):
        await orders.advance(50)
        assert (seen, orders.waiting) == ([1, 2], {"1h": 1})
        await orders.to_rest()
        assert orders.dead_letters == []


def test_a_list_has_a_size_and_a_wait() -> None:
    for size in (0, 10_001, True, "3"):
        with pytest.raises(InvalidSettingError, match="batch size"):
            Batch(size)  # type: ignore[arg-type]
    with pytest.raises(InvalidDurationError):
        Batch(1, "0s")


async def test_a_list_has_one_record_of_a_key_and_keeps_all_its_keys_while_it_hangs() -> None:
    """A call that ignores its time-out goes on with each of its records, not only with the first one."""
    called: list[list[bytes]] = []
    end = asyncio.Event()

    async def hang(values: list[bytes]) -> None:
        called.append(values)
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()

    policy = RetryPolicy("1s", timeout="2s")
    async with MemoryPartition(hang, policy, batch=BATCH, order=Order.KEY, concurrency=9) as orders:
        for value, key in ((b"a1", b"a"), (b"a2", b"a"), (b"b1", b"b"), (b"b2", b"b"), (b"c1", b"c"), (b"d1", b"d")):
            await orders.send(value, key=key)
        assert called == [[b"a1", b"b1", b"c1", b"d1"]]
        await pass_time(orders, 6_003, 2_001)
        assert orders.waiting == {"1s": 4, "held": 2}
        await orders.advance(60_000)
        assert len(called) == 1
        end.set()
        await orders.until(lambda: len(called) > 4)
        assert sorted(called[1:5]) == [[b"a1"], [b"b1"], [b"c1"], [b"d1"]], "each alone, as its last call hung"
        await orders.to_rest()
        assert sorted(chain(*called[5:])) == [b"a2", b"b2"]

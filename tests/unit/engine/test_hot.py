"""Hot retries: a delivery that fails tries again in place, in the time of one delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from doubles import BankDownError, crowd, failures, pass_time, serving, tell
from suspected import found, names

from retryapp.core.batch import Batch
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.classify import non_retryable
from retryapp.core.errors import LatePublishError
from retryapp.core.jobs import HandlerVerb
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import retryable
from retryapp.core.verdicts import Reject, RetryLater, Skip
from retryapp.engine.handler.handler import DURATION_BOUNDS_S, Delivery
from retryapp.testing import MemoryDestinations, MemoryPartition, Step

HOT = RetryPolicy("1h", hot="50ms*2", timeout="5s")


class Tries:
    """A handler that fails so many times at each attempt, and keeps what it was given."""

    def __init__(self, fails: int, error: Callable[[], BaseException] = BankDownError) -> None:
        self.fails = fails
        self.error = error
        self.seen: list[tuple[int, int]] = []
        self.deliveries: list[Delivery] = []

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        """Publish, and fail or not."""
        self.seen.append((delivery.attempt, delivery.hot_attempt))
        self.deliveries.append(delivery)
        delivery.publish("out", b"%s of try %d" % (value, delivery.hot_attempt))
        if delivery.hot_attempt <= self.fails:
            raise self.error()


async def test_a_failure_that_goes_away_at_once_is_no_failure() -> None:
    """Nothing of it is written, and only the last try has published."""
    async with serving(Tries(1), HOT, b"a") as (orders, tries):
        assert tries.seen == [(1, 1)]
        await orders.advance(49)
        assert tries.seen == [(1, 1)]
        await orders.advance(1)
        assert tries.seen == [(1, 1), (1, 2)]
        assert (await orders.to_rest(), orders.waiting) == (0, {})
        assert [each.value for each in orders.records("out")] == [b"a of try 2"]
        assert orders.records("app.orders.retry") == []


async def test_a_failure_that_stays_is_one_attempt_and_says_how_many_tries_it_took() -> None:
    """On the copy, in the row, and on the dead letter."""
    async with serving(Tries(9), HOT, b"a") as (orders, tries):
        await pass_time(orders, 100, 50)
        assert orders.waiting == {"1h": 1}
        (copy,) = orders.records("app.orders.retry")
        assert dict(copy.headers)["retry-hot-attempts"] == b"3"
        await orders.to_rest()
        assert tries.seen == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.attempt, letter.delivery, letter.hot_attempts) == ("exhausted", 2, 2, 3)
        assert orders.records("out") == []


async def test_a_rule_has_tries_in_place_of_its_own() -> None:
    """For its errors alone; the policy's are for all others, if it has any."""
    policies = [
        (RetryPolicy("1h", on=[retryable(BankDownError, hot="50ms")]), [(1, 1), (1, 2)], [(1, 1)]),
        (RetryPolicy("1h", hot="50ms*2", on=[retryable(BankDownError, hot="1ms")]), [(1, 1), (1, 2)],
         [(1, 1), (1, 2), (1, 3)]),
    ]  # fmt: skip
    for policy, own, others in policies:
        for error, seen in ((BankDownError, own), (OSError, others)):
            async with serving(Tries(9, error), policy, b"a") as (orders, tries):
                await pass_time(orders, 200, 50)
                assert (tries.seen, orders.waiting) == (seen, {"1h": 1})


async def test_a_former_try_publishes_no_more() -> None:
    """A task that it left behind has the former delivery."""
    async with serving(Tries(1), HOT, b"a") as (orders, tries):
        with pytest.raises(LatePublishError):
            tries.deliveries[0].publish("out", b"late")
        await orders.advance(50)
        with pytest.raises(LatePublishError):
            tries.deliveries[0].publish("out", b"later")
        assert len(orders.records("out")) == 1


@pytest.mark.parametrize(
    ("error", "left"),
    [(Reject("no"), 1), (RetryLater(after="10s"), 1), (Skip("nothing to do"), 0), (ValueError("never"), 1)],
    ids=["reject", "later", "skip", "non-retryable"],
)
async def test_what_somebody_has_decided_is_not_tried_again(error: BaseException, left: int) -> None:
    """A verdict, or a rule."""
    policy = RetryPolicy("1h", hot="50ms*2", timeout="1s", on=non_retryable(ValueError))
    async with serving(Tries(9, lambda: error), policy, b"a") as (orders, tries):
        assert (tries.seen, orders.engine.in_flight) == ([(1, 1)], 0)
        assert len(orders.dead_letters) + len(orders.waiting) == left


async def test_what_does_not_decode_and_where_nothing_can_be_published_is_not_tried_again() -> None:
    """It would fail alike."""
    async with serving(Tries(0), HOT, b"a", destinations=MemoryDestinations({})) as (orders, tries):
        assert (tries.seen, orders.waiting) == ([(1, 1)], {"1h": 1})
    async with serving(tries, HOT, b"a", value_type=int) as (orders, _):
        assert (tries.seen, len(orders.dead_letters)) == ([(1, 1)], 1)
        assert orders.dead_letters[0].hot_attempts == 1


async def test_all_tries_have_the_time_of_one_delivery() -> None:
    """A wait that would end after it is not begun, and a try that lasts too long is the last one."""

    async def slow(_value: bytes) -> None:
        begun.append(1)
        await asyncio.sleep(0.4)
        raise BankDownError

    begun: list[int] = []
    async with serving(slow, RetryPolicy("1h", hot="300ms*3", timeout="1s"), b"a") as (orders, _):
        await orders.advance(400)
        await orders.advance(300)
        assert (len(begun), orders.waiting) == (2, {})
        await orders.advance(300)
        (copy,) = orders.records("app.orders.retry")
        assert (len(begun), dict(copy.headers)["retry-error-type"]) == (2, b"retryapp.HandlerTimeoutError")
    async with serving(slow, RetryPolicy("1h", hot="600ms", timeout="1s"), b"a") as (orders, _):
        await orders.advance(400)
        assert (len(begun), orders.waiting) == (3, {"1h": 1})


async def test_the_time_in_the_handler_is_that_of_the_delivery_with_its_tries() -> None:
    """Also of one that fails, and of one that is cancelled because it takes too long."""

    async def slow(value: bytes) -> None:
        await asyncio.sleep(int(value) / 1000)
        if value == b"400":
            raise BankDownError

    async with serving(slow, RetryPolicy("1h", hot="300ms", timeout="2s"), b"400", b"200", b"9000") as (orders, _):
        await pass_time(orders, 4_000, 100)
        counts = zip((*DURATION_BOUNDS_S, None), orders.handler.durations.counts, strict=True)
        assert {bound: count for bound, count in counts if count} == {0.25: 1, 2.5: 2}
        assert orders.handler.durations.total_s == pytest.approx(0.4 + 0.3 + 0.4 + 0.2 + 2.0)


async def test_a_wait_ends_with_its_session_at_once_and_has_no_outcome() -> None:
    """The next session delivers the record again, with its first try."""
    async with serving(Tries(9), HOT, b"a") as (orders, tries):
        opening = orders.transport.pause(Step.PROVE)
        orders.lane.fail(RuntimeError("lane"))
        await orders.settle()
        assert not orders.engine._running
        await orders.advance(100)
        assert tries.seen == [(1, 1)]
        opening.set()
        await orders.advance(200)
        assert tries.seen == [(1, 1), (1, 1)]
        assert orders.records("app.orders.retry") == []


async def test_no_try_begins_where_the_group_may_have_given_the_record_to_another() -> None:
    """It asks first; the failure that it has counts for nothing."""
    tries, lapsed = Tries(9), [False]
    async with MemoryPartition(tries, HOT) as orders:
        orders.engine.context = replace(orders.engine.context, lapsed=lambda: lapsed[0])
        await orders.send(b"a")
        lapsed[0] = True
        hearing = orders.transport.pause(Step.PROVE)
        await orders.advance(50)
        assert (tries.seen, orders.engine.in_flight) == ([(1, 1)], 0)
        assert "MembershipLapsedError" in str(orders.lane.last_error)
        lapsed[0] = False
        hearing.set()
        await orders.advance(200)
        assert tries.seen == [(1, 1), (1, 1)]


async def test_a_drain_ends_the_waiting_with_the_last_error() -> None:
    """It takes no time, and the next owner has the row."""
    async with serving(Tries(9), HOT, b"a") as (orders, tries):
        await orders.finish(drain_s=10)
        assert (tries.seen, len(orders.records("app.orders.retry"))) == ([(1, 1)], 1)


async def test_a_try_that_runs_in_a_drain_is_the_last_one() -> None:
    """Its error is the outcome."""
    fail, begun = asyncio.Event(), list[bytes]()

    async def handler(value: bytes) -> None:
        begun.append(value)
        await fail.wait()
        raise BankDownError

    async def end() -> None:
        fail.set()

    async with serving(handler, HOT, b"a") as (orders, _):
        await orders.finish(drain_s=10, meanwhile=end)
        assert (begun, len(orders.records("app.orders.retry"))) == ([b"a"], 1)


async def test_a_wait_takes_one_runner_and_a_cancellation_of_somebody_else_ends_it() -> None:
    """Others run meanwhile; whoever keeps a handler's task and cancels it costs the other tries."""
    tasks: list[asyncio.Task[None]] = []
    seen: list[bytes] = []

    async def handler(value: bytes) -> None:
        seen.append(value)
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        if value == b"a":
            raise BankDownError

    async with serving(handler, HOT, b"a", b"b", b"c", concurrency=2) as (orders, _):
        assert seen == [b"a", b"b", b"c"]
        tasks[0].cancel()
        await orders.settle()
        assert (orders.waiting, orders.engine.in_flight) == ({"1h": 1}, 0)
        await orders.send(b"d", b"e")
        assert seen[3:] == [b"d", b"e"]


async def test_no_try_begins_where_no_run_may_begin() -> None:
    """Too many runs hang: the record waits for its next delivery."""
    async with serving(Tries(9), HOT, b"a") as (orders, tries):
        crowd(orders.handler.orphans)
        await orders.advance(50)
        assert (tries.seen, orders.waiting) == ([(1, 1)], {"1h": 1})


async def test_a_suspect_has_one_try() -> None:
    """It may kill the worker each time."""
    async with serving(Tries(9), HOT, transport=found("s1:old@0", *names(1))) as (orders, tries):
        await orders.advance(1_000)
        assert (tries.seen, orders.waiting) == ([(1, 1)], {"1h": 1})


async def test_a_plain_function_is_tried_again_too() -> None:
    """In a thread each time."""
    seen: list[int] = []

    def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery.hot_attempt)
        if delivery.hot_attempt == 1:
            raise BankDownError

    async with serving(handler, HOT, b"a") as (orders, _):
        await orders.until(lambda: seen == [1] and orders.engine._running and next(iter(orders.engine._running)).pause)
        await orders.advance(50)
        await orders.until(lambda: not orders.engine.in_flight)
        assert (seen, orders.waiting) == ([1, 2], {})


async def test_no_try_follows_a_circuit_that_opened_while_it_was_waited_for() -> None:
    """Nothing is tried in place in an outage: the failure is free, and the record waits."""
    calls: list[bytes] = []

    async def handle(value: bytes) -> None:
        calls.append(value)
        raise BankDownError

    policy = RetryPolicy("1s", hot="500ms*3", timeout="10s")
    async with MemoryPartition(handle, policy, circuit=CircuitBreaker()) as orders:
        await orders.send(b"a")
        await orders.advance(100)
        await tell(orders, HandlerVerb.OPEN)
        await pass_time(orders, 3_000, 100)
        assert (calls, sum(orders.waiting.values())) == ([b"a"], 1)


class OddError(Exception):
    """Cannot be asked for its class, as a proxy whose target is gone."""

    @property
    def __class__(self) -> Any:
        raise ValueError("no class")

    @__class__.setter
    def __class__(self, _new: Any) -> None:
        """Be one that can be set, as a property of this name must."""


@pytest.mark.parametrize("batch", [None, Batch(4, "50ms")])
async def test_an_error_whose_class_cannot_be_asked_for_is_a_failure_as_any(batch: Batch | None) -> None:
    """In a try in place, and for a list."""

    async def handle(_value: Any) -> None:
        raise OddError

    policy = RetryPolicy("1s", hot=None if batch else "50ms*2")
    async with MemoryPartition(handle, policy, batch=batch) as orders:
        await orders.send(b"a")
        await orders.to_rest()
        assert failures(orders) == []
        assert [letter.reason for letter in orders.dead_letters] == ["exhausted"]

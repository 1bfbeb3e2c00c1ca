"""`MemoryPartition.to_rest`: what is held back comes to rest, and what only a command ends is named, in no time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from retryapp import CircuitBreaker, RetryPolicy, pausing, retryable
from retryapp.core.holding import Holding
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.testing import MemoryPartition, Script, Step

OUTAGE = CircuitBreaker(minimum_calls=3)


class Order(BaseModel):
    """A value as handlers get it."""

    id: int


async def failing(_value: bytes) -> None:
    raise ConnectionError


@pytest.mark.parametrize("service", ["", "ledger"])
async def test_an_outage_that_does_not_end_spends_the_attempts_in_the_end(service: str) -> None:
    """Its failures are free for an hour, by the handler's own circuit and by a named one."""
    more: dict[str, Any] = {"circuits": {service: OUTAGE}} if service else {"circuit": OUTAGE}
    policy = RetryPolicy("5m 10m", on=[retryable(ConnectionError, circuit=service)] if service else [])
    async with MemoryPartition(failing, policy, **more) as orders:
        await orders.send(*[b"order"] * 5)
        assert await orders.to_rest() > 3_600_000
        assert len(orders.dead_letters) == 5


async def test_retries_come_at_their_rate() -> None:
    """The time between two is the rate's, give or take a tenth."""
    times: list[int] = []

    async def twice(_value: bytes, delivery: Any) -> None:
        if delivery.attempt == 1:
            raise ConnectionError
        times.append(delivery.started_ms)

    async with MemoryPartition(twice, "5m", rate_limit="1/m") as orders:
        await orders.send(*[b"order"] * 4)
        await orders.to_rest()
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert len(waits) == 3
    assert all(60_000 <= wait <= 66_000 for wait in waits)


async def test_a_pause_is_named() -> None:
    async with MemoryPartition(failing, RetryPolicy("5m", on=[pausing(ConnectionError)])) as orders:
        await orders.send(b"order")
        with pytest.raises(AssertionError, match="waiting; the partition is paused"):
            await orders.to_rest()


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_a_stopped_sequence_is_named(order: str) -> None:
    """The clock stays within the time that was allowed."""
    async with MemoryPartition(failing, "5m", order=order, holding=Holding(on_dead="hold")) as orders:
        began_ms = orders.clock.wall_ms()
        await orders.send(b"order 1", b"order 2", key=b"key")
        with pytest.raises(AssertionError, match="a sequence has stopped behind a dead record"):
            await orders.to_rest(longest_ms=86_400_000)
        assert orders.clock.wall_ms() == began_ms + 86_400_001


async def test_a_lane_that_opens_again_is_not_at_rest() -> None:
    """Its record was called, and what became of that is not durable: it runs again."""
    script = Script("fail")
    async with MemoryPartition(script, "5m") as orders:
        orders.transport.fail(Step.COMMIT, ConnectionError("no answer"))
        await orders.send(b"order")
        assert await orders.to_rest() >= 300_000
    assert [call.attempt for call in script.calls] == [1, 1, 2]


async def test_a_lane_that_does_not_open_is_named() -> None:
    async with MemoryPartition(Script(), "5m") as orders:
        orders.transport.fail(Step.COMMIT, ConnectionError("no answer"), times=1_000)
        await orders.send(b"order")
        with pytest.raises(AssertionError, match=r"still 1 unread, .*the lane is opening \(ConnectionError: no answer"):
            await orders.to_rest(longest_ms=3_600_000)


async def test_runs_that_hang_for_so_long_that_a_worker_ends_are_named() -> None:
    """The kit went on, a second at a time, for a year."""
    over = asyncio.Event()

    async def hang(_value: bytes) -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    async with MemoryPartition(hang, "1m; timeout=10s") as orders:
        await orders.send(*[b"order"] * 20)
        with pytest.raises(AssertionError, match=r"a worker would have ended: no run can begin: 16 runs given up"):
            await orders.to_rest()
        over.set()


async def test_what_waits_is_known_of_a_worker_that_has_ended() -> None:
    """It was nothing."""
    async with MemoryPartition(Script("fail"), "5m") as orders:
        await orders.send(b"order")
        await orders.finish()
        assert orders.waiting == {"5m": 1}
        with pytest.raises(AssertionError, match="the partition does not run"):
            await orders.to_rest()
    assert orders.waiting == {"5m": 1}


async def test_what_a_paused_partition_has_not_read_is_not_at_rest() -> None:
    async with MemoryPartition(Script(), "5m") as orders:
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        await orders.send(b"order 1", b"order 2")
        with pytest.raises(AssertionError, match=r"still 2 unread, .*the partition is paused"):
            await orders.to_rest()


async def test_a_handler_that_publishes_to_its_own_main_topic_without_end_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never ended."""
    monkeypatch.setattr("retryapp.testing.endless.MOST_PUBLISHED", 500)

    async def again(value: bytes, delivery: Any) -> None:
        delivery.publish("orders", value)

    async with MemoryPartition(again, "5m") as orders:
        await orders.send(b"order")
        with pytest.raises(AssertionError, match=r"the handler published 5\d\d records to its own main topic"):
            await orders.to_rest()


@pytest.mark.parametrize("rule", [False, True])
async def test_a_record_that_fails_without_end_is_named(monkeypatch: pytest.MonkeyPatch, rule: bool) -> None:
    """It was delivered for a virtual year: three million times."""
    monkeypatch.setattr("retryapp.testing.endless.MOST_FAILED", 200)
    on = [retryable(ConnectionError, schedule="forever(10s)")] if rule else []
    async with MemoryPartition(failing, RetryPolicy("1s" if rule else "forever(10s)", on=on), order="key") as orders:
        await orders.send(b"order", key=b"key")
        with pytest.raises(AssertionError, match=r"app/orders@\S+/0/0 failed 201 times, and its policy has no end"):
            await orders.to_rest()


async def test_a_record_that_fails_often_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a last attempt, but with a last day."""
    monkeypatch.setattr("retryapp.testing.endless.MOST_FAILED", 200)
    async with MemoryPartition(failing, "forever(10s); max_elapsed=1h", order="key") as orders:
        await orders.send(b"order", key=b"key")
        await orders.to_rest()
        assert [letter.reason for letter in orders.dead_letters] == ["expired"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"values": [{"id": 1}]},
            r"value 1: .* bytes or None, .* got {'id': 1}: write json\.dumps\(\.\.\.\)\.enc",
        ),
        ({"values": [], "key": b"k"}, "values: expected at least one .*; a null value is None"),
        ({"values": [b"1", "2"]}, r"value 2: expected bytes .*: write \.encode\(\)"),
        ({"values": [Order(id=1)]}, r"value 1: expected bytes .*: write \.model_dump_json\(\)\.encode\(\)"),
        ({"key": "customer"}, "key: expected bytes"),
        ({"headers": {"event-id": b"7"}}, r"headers: expected pairs .* got a mapping"),
        ({"headers": [("event-id", "7")]}, "header event-id: expected bytes"),
        ({"headers": [(b"event-id", b"7")]}, "header b'event-id': expected its name as text"),
    ],
)
async def test_what_no_topic_can_hold_is_refused(given: dict[str, Any], problem: str) -> None:
    """A handler would be given text where it gets bytes from Kafka, or its lane would open again and again."""
    async with MemoryPartition(Script()) as orders:
        with pytest.raises(TypeError, match=problem):
            await orders.send(*given.pop("values", [b"order"]), **given)
        assert orders.records("orders") == []


async def test_headers_may_come_from_an_iterator() -> None:
    """They were gone once they had been checked, and a handler that looks for one was tested without it."""
    pairs = (("trace", b"1"), ("trace", b"2"))
    async with MemoryPartition(Script()) as orders:
        await orders.send(b"one", b"two", headers=iter(pairs))
        assert [record.headers for record in orders.records("orders")] == [pairs, pairs]


async def test_time_passes_in_whole_milliseconds() -> None:
    """What failed after a part of one was dead as `damaged`, by an error that named no line of the test."""
    async with MemoryPartition(Script("fail"), "5m") as orders:
        with pytest.raises(TypeError, match=r"ms: expected whole milliseconds, got 300000\.0"):
            await orders.advance(5 * 60e3)  # type: ignore[arg-type]

"""Scripted handlers, and time that runs to rest."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from retryapp import Batch, RetryPolicy, Unavailable, testing
from retryapp.core.errors import InvalidDurationError, InvalidSettingError
from retryapp.engine.handler.handler import Delivery, HandlerFunction
from retryapp.testing import MemoryPartition, Script


def told(script: Script) -> list[tuple[int, int, str]]:
    """Return what was called: attempt, time, what it came to."""
    return [(seen.attempt, seen.at_ms, seen.came_to) for seen in script.calls]


async def test_a_script_is_followed_attempt_by_attempt() -> None:
    """Each step at its time, then the handler."""
    called: list[bytes] = []

    async def handler(value: bytes, _delivery: Delivery) -> None:
        called.append(value)

    script = Script("fail", "hang", "later 90s", ValueError("odd"), then=handler)
    async with MemoryPartition(script, RetryPolicy("5m*4", timeout="30s")) as orders:
        await orders.send(b"order 1")
        took_ms = await orders.to_rest()
    assert told(script) == [
        (1, 0, "ConnectionError"),
        (2, 300_000, "stopped"),
        (3, 630_000, "RetryLater"),
        (4, 720_000, "ValueError"),
        (5, 1_020_000, "ok"),
    ]
    assert called == [b"order 1"]
    assert took_ms == 1_020_000
    assert orders.dead_letters == []


async def test_the_handler_under_test_may_be_any_function_that_a_worker_takes() -> None:
    """A plain one, and one that does not take the delivery, too: no adapter is written for the test."""
    called: list[object] = []

    async def takes_one(value: bytes) -> None:
        called.append(value)

    def plain(value: bytes, delivery: Delivery) -> None:
        called.append((value, delivery.attempt))
        delivery.publish("receipts", b"paid")

    for then in (takes_one, called.append, plain):
        async with MemoryPartition(Script("fail", then=then), "5m") as orders:
            await orders.send(b"order 1")
            await orders.to_rest()
    assert called == [b"order 1", b"order 1", (b"order 1", 2)]
    assert [record.value for record in orders.records("receipts")] == [b"paid"]


async def test_a_value_is_decoded_as_in_a_declaration() -> None:
    """By the same word."""
    script = Script()
    async with MemoryPartition(script, "5m", value=dict) as orders:
        await orders.send(b'{"id": 1}')
    assert [seen.value for seen in script.calls] == [{"id": 1}]


async def test_a_partition_that_was_not_started_takes_no_records() -> None:
    """Where `async with` was forgotten nothing would run, and every assertion about dead letters would hold."""
    orders = MemoryPartition(Script("reject"), "5m")
    for use in (orders.send(b"order 1"), orders.advance(1)):
        with pytest.raises(RuntimeError, match="async with"):
            await use


async def test_what_never_ends_is_told() -> None:
    """A handler without a time-out worth the name, for longer than the test gives it."""
    async with MemoryPartition(Script("hang"), RetryPolicy("1s", timeout="1d")) as orders:
        await orders.send(b"order 1")
        with pytest.raises(AssertionError, match="1 in flight"):
            await orders.to_rest(longest_ms=60_000)


@pytest.mark.parametrize("step", ["sleep", "later", "later soon", "", 5, None, int, Unavailable])
def test_an_unknown_step_is_refused(step: Any) -> None:
    """Not when it is its turn, in the middle of a test: Python's own error would count as the failure of an attempt."""
    with pytest.raises((ValueError, InvalidDurationError, TypeError), match=r"expected|duration|required.*circuit"):
        Script("ok", step)


def test_the_public_names_are_these() -> None:
    """A name added or removed here is a decision, not an accident."""
    assert testing.__all__ == [
        "MemoryDeadLetterTable",
        "MemoryDestinations",
        "MemoryLaneTransport",
        "MemoryPartition",
        "MemoryPendingTable",
        "Pause",
        "RecordingObserver",
        "Script",
        "ScriptedRandom",
        "Seen",
        "Step",
        "VirtualClock",
    ]


def slow(_value: bytes) -> None:
    time.sleep(0.15)


async def slow_too(value: bytes) -> None:
    await asyncio.to_thread(slow, value)


@pytest.mark.parametrize("function", [slow, slow_too])
async def test_what_takes_real_time_has_some(function: HandlerFunction) -> None:
    """Virtual time went on, and it was timed out though it was done soon; a script that hung before takes none away."""
    script = Script("hang", then=function)
    async with MemoryPartition(script, RetryPolicy("1s", timeout="5s")) as orders:
        await orders.send(b"1")
        await orders.to_rest()
    assert [seen.came_to for seen in script.calls] == ["stopped", "ok"]


async def test_where_nothing_is_real_no_real_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that sleeps or hangs: there is no thread, and no socket."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # of other tests some may be left
    monkeypatch.setattr("retryapp.testing.partition._REAL_LOOKS", 1_000_000)

    async def sleep(_value: bytes) -> None:
        await asyncio.sleep(20)

    async with MemoryPartition(Script("hang", then=sleep), RetryPolicy("1s", timeout="30s")) as orders:
        await orders.send(b"1")
        assert await orders.to_rest() == 51_000


@pytest.fixture
def idle_thread() -> Iterator[None]:
    """Have a thread that does nothing, as pytest-xdist has one."""
    over = threading.Event()
    idle = threading.Thread(target=over.wait, daemon=True)
    idle.start()
    yield
    over.set()
    idle.join()


@pytest.mark.usefixtures("idle_thread")
async def test_beside_a_thread_that_does_nothing_little_real_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each record that slept took half a second."""
    waits = list[float]()
    ours = SimpleNamespace(sleep=waits.append)  # not of the module: threads that other tests have left sleep, too
    monkeypatch.setattr("retryapp.testing.partition.time", ours)

    async def sleep(value: bytes) -> None:
        await asyncio.sleep(int(value))

    async with MemoryPartition(sleep, RetryPolicy("1s", timeout="10m"), concurrency=20) as orders:
        await orders.send(*[b"%d" % number for number in range(1, 21)])
        await orders.to_rest()
    assert 0.5 < sum(waits) < 2.5


@pytest.mark.usefixtures("idle_thread")
async def test_beside_a_thread_that_does_nothing_real_time_is_waited_for_where_something_comes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where many changes came to nothing, a short wait is left for what is real; once it comes, all of it again."""
    left: dict[asyncio.Future[None], int] = {}

    def look(_seconds: float) -> None:
        for real in [*left]:
            left[real] -= 1
            if not left[real]:
                del left[real]
                real.set_result(None)

    async def work(value: bytes) -> None:
        virtual_s, _, looks = value.decode().partition(" ")
        await asyncio.sleep(int(virtual_s))
        if looks:
            real = asyncio.get_running_loop().create_future()
            left[real] = int(looks)
            await real

    monkeypatch.setattr("retryapp.testing.partition.time", SimpleNamespace(sleep=look))
    script = Script(then=work)
    values = [b"1", b"2", b"3", b"4", b"5", b"10", b"10 1", b"11", b"11 10"]
    async with MemoryPartition(script, RetryPolicy("1s", timeout="12s"), concurrency=20) as orders:
        await orders.send(*values)
        await orders.to_rest()
    assert [call.attempt for call in script.calls] == [1] * len(values)


async def test_a_script_takes_no_lists() -> None:
    """It was called with one, and failed by an error of its own."""
    with pytest.raises(InvalidSettingError, match="expected None: a Script takes one record at a time"):
        MemoryPartition(Script("fail"), batch=Batch(10))


async def test_timers_that_were_set_before_keep_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """They came due, or did not, by how long the machine had been running."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 100.0)
    transport = MemoryPartition(Script()).transport
    for _ in range(2):
        async with asyncio.timeout(60) as bound, MemoryPartition(Script(), transport=transport) as orders:
            await orders.advance(59_000)
            assert not bound.expired()
            with pytest.raises(asyncio.CancelledError):
                await orders.advance(2_000)
            assert bound.expired()


async def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop stood still, and its transport belonged to it."""
    loop, orders = asyncio.get_running_loop(), MemoryPartition(Script())
    former = loop.time
    monkeypatch.setattr(orders, "settle", Mock(side_effect=asyncio.CancelledError))
    with pytest.raises(asyncio.CancelledError):
        await orders.__aenter__()
    assert loop.time == former
    async with MemoryPartition(Script(), transport=orders.transport):
        pass


async def test_two_clocks_do_not_drive_one_event_loop() -> None:
    """The outer partition stood still."""
    async with MemoryPartition(Script("fail"), "5m") as orders:
        with pytest.raises(RuntimeError, match="give both the same clock="):
            await MemoryPartition(Script()).__aenter__()
        await orders.send(b"1")
        assert await orders.to_rest() == 300_000

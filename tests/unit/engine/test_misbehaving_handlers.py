"""Whatever a handler does is a failure of its record, and never ends the worker."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from deliver_once import deliver_once
from doubles import BankDownError, failing, make_record, make_station, settle, the

from retryapp.core.policy import RetryPolicy
from retryapp.core.verdicts import Reject
from retryapp.engine.run import Run, RunAbortedError
from retryapp.engine.turn import Turn
from retryapp.testing import VirtualClock


async def test_a_handler_that_runs_too_long_is_cancelled_and_tried_again(clock: VirtualClock) -> None:
    """Not a millisecond before its time-out."""
    cancelled: list[bool] = []

    async def handler(_value: bytes) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    delivery = asyncio.create_task(deliver_once(make_station(handler, RetryPolicy("1s", timeout="30s")), make_record()))
    await settle()
    clock.advance(29_999)
    await settle()
    assert (delivery.done(), cancelled) == (False, [])
    clock.advance(1)
    out, metadata = the(await delivery)
    assert (out.topic, cancelled) == ("app.orders.retry", [True])
    assert metadata.error_type.endswith("HandlerTimeoutError")
    assert "30000 ms" in metadata.error_message
    assert metadata.last_failed_ms - metadata.started_ms == 30_000


async def test_a_group_of_errors_is_told_by_its_members() -> None:
    """Even of those that end other programs."""
    group = BaseExceptionGroup("group", [SystemExit(1), Reject("bad")])
    _, metadata = the(await deliver_once(make_station(failing(group)), make_record()))
    assert metadata.reason == "rejected"


async def test_a_time_out_of_the_handlers_own_is_its_own() -> None:
    """Not taken for ours."""
    _, metadata = the(await deliver_once(make_station(failing(TimeoutError("socket"))), make_record()))
    assert (metadata.error_type, metadata.error_message) == ("TimeoutError", "socket")


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError("by itself"),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        BaseException("base"),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_a_failure_of_the_record(error: BaseException) -> None:
    """And never ends the worker."""
    out, metadata = the(await deliver_once(make_station(failing(error)), make_record()))
    assert out.topic == "app.orders.retry"
    assert metadata.error_type.endswith(type(error).__name__)


class TextExitsError(Exception):
    """Its text ends programs."""

    def __str__(self) -> str:
        """End the program."""
        raise SystemExit(3)


class HiddenCauseError(Exception):
    """Its cause cannot be looked at."""

    @property
    def __cause__(self) -> BaseException | None:
        """Cancel whoever looks."""
        raise asyncio.CancelledError


class NamelessType(type):
    """A type whose name cannot be looked at."""

    def __getattribute__(cls, name: str) -> Any:
        """Interrupt whoever asks for the name."""
        if name == "__qualname__":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=NamelessType):
    """Of such a type."""


@pytest.mark.parametrize(
    "error", [TextExitsError(), HiddenCauseError(), NamelessError()], ids=["text", "cause", "type"]
)
async def test_an_error_that_cannot_be_looked_at_is_a_failure_of_the_record(error: BaseException) -> None:
    """Its own code runs when it is judged: that must neither end the worker nor be met again for ever."""
    out, metadata = the(await deliver_once(make_station(failing(error)), make_record()))
    assert (out.topic, metadata.attempt) == ("app.orders.retry", 1)
    assert metadata.error_type.endswith("UnprintableError")


@pytest.mark.parametrize("error", [StopIteration(1), SystemExit(3), ValueError("no")], ids=lambda e: type(e).__name__)
async def test_whatever_a_plain_function_raises_is_a_failure_of_the_record(error: BaseException) -> None:
    """Also what asyncio cannot carry out of a thread."""
    threads: list[int] = []

    def handler(_value: bytes) -> None:
        threads.append(threading.get_ident())
        raise error

    delivery = asyncio.create_task(deliver_once(make_station(handler), make_record()))
    over = threading.Event()
    deadline = asyncio.create_task(asyncio.to_thread(over.wait, 5))
    await asyncio.wait({delivery, deadline}, return_when=asyncio.FIRST_COMPLETED)
    over.set()
    await deadline
    assert delivery.done(), "the failure never came back from the thread"
    _, metadata = the(await delivery)
    assert type(error).__name__ in metadata.error_type + metadata.error_message
    assert threads != [threading.get_ident()]


async def test_a_handler_that_cancels_its_own_task_fails_and_spares_the_worker() -> None:
    """As an outdated time-out library does."""

    async def handler(_value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    turn = None

    async def worker() -> None:
        nonlocal turn
        turn = await deliver_once(make_station(handler), make_record())
        await asyncio.sleep(0)

    await asyncio.wait_for(worker(), None)
    assert turn is not None
    out, metadata = the(turn)
    assert (out.topic, metadata.error_type.rsplit(".", 1)[-1]) == ("app.orders.retry", "CancelledError")


async def test_a_handler_that_leaves_a_cancellation_behind_does_not_hit_the_worker() -> None:
    """It asks for its own cancellation and returns: that was its last await."""

    async def handler(_value: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def worker() -> Turn:
        turn = await deliver_once(make_station(handler), make_record())
        await asyncio.sleep(0)
        return turn

    assert (await asyncio.create_task(worker())).next_offset == 43


async def test_a_worker_that_is_cancelled_ends() -> None:
    """And its handler with it: that is no failure of the record."""
    ended: list[bool] = []

    async def handler(_value: bytes) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    delivery = asyncio.create_task(deliver_once(make_station(handler), make_record()))
    await settle()
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert ended == [True]


async def test_a_run_that_is_given_up_has_no_outcome() -> None:
    """The handler is cancelled; whatever it then does counts for nothing."""

    async def stubborn(_value: bytes) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    for handler in (stubborn, failing(BankDownError())):
        runs: list[Run] = []
        delivery = asyncio.create_task(deliver_once(make_station(handler), make_record(), on_run=runs.append))
        await settle() if handler is stubborn else await asyncio.sleep(0)
        runs[0].abort()
        with pytest.raises(RunAbortedError):
            await delivery

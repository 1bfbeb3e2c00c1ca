"""One delivery becomes one turn."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from retryapp.core.classify import non_retryable
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.hops import Outgoing
from retryapp.core.metadata import RetryMetadata
from retryapp.core.names import RETRY_ATTEMPT, RETRY_DUE_MS
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin, Record
from retryapp.core.verdicts import Reject, RetryLater
from retryapp.engine.handler import Delivery
from retryapp.engine.run import Run, RunAbortedError, Station
from retryapp.engine.turn import Turn
from retryapp.ports import Event, TopicPartition
from retryapp.testing import VirtualClock, deliver_once

MakeStation = Callable[..., Station]
MakeRecord = Callable[..., Record]

USER_HEADERS = (("trace", b"1"), ("trace", None))


class BankDownError(Exception):
    """A failure that goes away."""


def failing(error: BaseException) -> Callable[[Any], Any]:
    """Return a handler that raises."""

    async def handler(_value: Any) -> None:
        raise error

    return handler


async def fine(_value: Any) -> None:
    """Do nothing."""


def the(turn: Turn) -> tuple[Outgoing, RetryMetadata]:
    """Return the one record that a turn publishes, and its metadata."""
    (out,) = turn.publishes
    metadata = decode_metadata(out.headers)
    assert metadata is not None
    return out, metadata


def again(out: Outgoing, offset: int = 7) -> Record:
    """Return a copy that waited as it comes from the redelivery topic."""
    return Record("app.orders.redelivery", out.partition, offset, 1_800_000_000_000, out.key, out.value, out.headers)


async def settle() -> None:
    """Let tasks run."""
    for _ in range(50):
        await asyncio.sleep(0)


# -- what becomes of a first delivery ---------------------------------------------------------------------------------


async def test_success_at_first_try_settles_the_offset_and_publishes_nothing(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
    """The turn is not urgent: offsets alone wait for the tick."""
    turn = await deliver_once(make_station(fine), make_record(offset=42))
    assert (turn.source, turn.next_offset) == (TopicPartition("orders", 0), 43)
    assert (turn.publishes, turn.puts, turn.removes, turn.urgent) == ((), (), (), False)
    assert turn.observations == ()  # records that are fine at once are told of together


async def test_a_failure_goes_to_the_retry_topic_with_its_due_time_and_its_story(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """Every header that the next delivery needs."""
    station = make_station(failing(BankDownError("no answer")), "1s 10s")
    now_ms = clock.wall_ms()
    turn = await deliver_once(station, make_record(offset=42, headers=USER_HEADERS))
    out, metadata = the(turn)
    assert (out.topic, out.partition, out.key, out.value) == ("app.orders.retry", 0, b"k", b"v")
    assert out.headers[:2] == USER_HEADERS
    assert metadata.origin == Origin("orders", "kq8G0bTz", 0, 42)
    assert (metadata.group, metadata.handler) == ("app", station.handler.name)
    assert (metadata.attempt, metadata.due_at_ms, metadata.tier) == (1, now_ms + 1_000, "1s")
    assert (metadata.first_failed_ms, metadata.last_failed_ms, metadata.started_ms) == (now_ms,) * 3
    assert metadata.origin_timestamp_ms == 1_600_000_000_000
    assert metadata.error_type.endswith("BankDownError")
    assert metadata.error_message == "no answer"
    assert (metadata.policy, metadata.reason, metadata.error_trace) == (station.handler.policy.digest, None, None)
    assert (turn.source, turn.next_offset) == (TopicPartition("orders", 0), 43)
    assert [o.event for o in turn.observations] == [Event.FAILED, Event.SCHEDULED]


async def test_the_delay_is_jittered_by_the_stations_random_numbers(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """Jitter only shortens."""
    delays = []
    for rng in (0.0, 0.5):
        station = make_station(failing(BankDownError()), "exp(10s, x2, jitter=0.5, 3)", rng=rng)
        _, metadata = the(await deliver_once(station, make_record()))
        assert metadata.due_at_ms is not None
        delays.append(metadata.due_at_ms - clock.wall_ms())
    assert delays[0] != delays[1]
    assert all(5_000 <= delay <= 10_000 for delay in delays)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Reject("no such customer"), "rejected"),
        (ValueError("never"), "non-retryable"),
        (BankDownError("gone for good"), "exhausted"),
    ],
)
async def test_what_is_not_tried_again_goes_to_the_dead_letter_topic(
    make_station: MakeStation, make_record: MakeRecord, error: Exception, reason: str
) -> None:
    """With the reason, the traceback and no due time."""
    policy = RetryPolicy("fixed(1s, 1)", on=non_retryable(ValueError))
    station = make_station(failing(error), policy)
    record = make_record(headers=USER_HEADERS)
    if reason == "exhausted":
        out, _ = the(await deliver_once(station, record))
        station.clock.advance(1_000)  # type: ignore[attr-defined]
        record = again(out)
    turn = await deliver_once(station, record)
    out, metadata = the(turn)
    assert (out.topic, out.key, out.value, out.headers[:2]) == ("app.orders.dlq", b"k", b"v", USER_HEADERS)
    assert (metadata.reason, metadata.due_at_ms, metadata.error_message) == (reason, None, str(error))
    assert metadata.error_trace
    assert [(o.event, o.reason) for o in turn.observations] == [(Event.FAILED, None), (Event.DEAD, reason)]


async def test_retry_later_replaces_the_next_delay(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """The tier is the nearest one; the due time is what was asked for."""
    _, metadata = the(await deliver_once(make_station(failing(RetryLater("7s"))), make_record()))
    assert (metadata.due_at_ms, metadata.tier, metadata.attempt) == (clock.wall_ms() + 7_000, "10s", 1)


async def test_a_value_that_cannot_be_decoded_is_dead_at_once_and_keeps_its_bytes(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
    """The handler never sees it, and the message does not quote it."""
    calls: list[object] = []

    async def handler(value: dict[str, int]) -> None:
        calls.append(value)

    turn = await deliver_once(make_station(handler, value_type=dict), make_record(b"{secret"))
    out, metadata = the(turn)
    assert (metadata.reason, metadata.attempt, out.value, calls) == ("undecodable", 1, b"{secret", [])
    assert "secret" not in metadata.error_message


async def test_a_validator_of_the_user_that_raises_is_a_failure_of_the_record(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
    """Decoding runs the user's code too."""

    class Order(BaseModel):
        item: str

        @field_validator("item")
        @classmethod
        def known(cls, item: str) -> str:
            return {"apple": "fruit"}[item]

    out, metadata = the(await deliver_once(make_station(fine, value_type=Order), make_record(b'{"item": "rock"}')))
    assert (out.topic, metadata.error_type) == ("app.orders.retry", "KeyError")


# -- attempts ---------------------------------------------------------------------------------------------------------


async def test_a_record_is_delivered_max_attempts_times_and_then_dead(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """No more, no fewer; what never changes is the same in every copy."""
    seen: list[Delivery] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery)
        raise BankDownError

    station = make_station(handler, "1s 10s 1m")
    record = make_record(headers=USER_HEADERS)
    dues = []
    for _ in range(3):
        out, metadata = the(await deliver_once(station, record))
        assert out.topic == "app.orders.retry"
        assert metadata.due_at_ms is not None
        dues.append(metadata.due_at_ms)
        clock.advance(metadata.due_at_ms - clock.wall_ms())
        record = again(out)
    out, metadata = the(await deliver_once(station, record))
    assert (out.topic, metadata.reason, metadata.attempt) == ("app.orders.dlq", "exhausted", 4)
    assert [delivery.attempt for delivery in seen] == [1, 2, 3, 4]
    assert [delivery.due_at_ms for delivery in seen] == [None, *dues]
    assert [delivery.lateness_ms for delivery in seen] == [None, 0, 0, 0]
    assert {delivery.failure_id for delivery in seen} == {"app/orders@kq8G0bTz/0/42"}
    assert {(d.key, d.raw_value, d.headers, d.timestamp_ms) for d in seen} == {
        (b"k", b"v", USER_HEADERS, 1_600_000_000_000)
    }
    assert [entry.attempt for entry in metadata.history] == [1, 2, 3, 4]
    assert metadata.first_failed_ms == seen[0].started_ms


async def test_success_after_a_failure_is_told_on_the_events_topic(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """With attempt and lateness: a recovered record costs one event."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError())), make_record()))
    clock.advance(1_250)
    turn = await deliver_once(make_station(fine), again(out, offset=7))
    (event,) = turn.publishes
    told = json.loads(event.value or b"")
    assert (event.topic, event.partition, event.key) == ("app.orders.events", 0, b"app/orders@kq8G0bTz/0/42")
    assert (told["attempt"], told["lateness_ms"], told["started_ms"]) == (2, 250, clock.wall_ms())
    assert (turn.source, turn.next_offset) == (TopicPartition("app.orders.redelivery", 0), 8)


async def test_a_null_value_reaches_the_handler_as_null_at_every_attempt(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """It travels as empty in between."""
    seen: list[object] = []

    async def handler(value: bytes | None) -> None:
        seen.append(value)
        raise BankDownError

    station = make_station(handler)
    out, metadata = the(await deliver_once(station, make_record(None)))
    assert (out.value, metadata.null_value) == (b"", True)
    clock.advance(1_000)
    await deliver_once(station, again(out))
    assert seen == [None, None]


# -- never early ------------------------------------------------------------------------------------------------------


async def test_a_redelivery_that_comes_too_soon_waits_for_its_due_time(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """Another worker's clock may run ahead of ours."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError()), "10s"), make_record()))
    started: list[int] = []

    async def handler(_value: bytes) -> None:
        started.append(clock.wall_ms())

    due_ms = clock.wall_ms() + 10_000
    delivery = asyncio.create_task(deliver_once(make_station(handler, "10s"), again(out)))
    for ms in (0, 9_999):
        clock.advance(ms)
        await settle()
        assert started == []
    clock.advance(1)
    await delivery
    assert started == [due_ms]


async def test_a_wall_clock_that_is_set_back_while_it_waits_makes_it_wait_on(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
    """The due time is looked at again after the wait."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError()), "10s"), make_record()))
    started: list[int] = []

    async def handler(_value: bytes) -> None:
        started.append(clock.wall_ms())

    delivery = asyncio.create_task(deliver_once(make_station(handler, "10s"), again(out)))
    await settle()
    clock.jump_wall(-5_000)
    clock.advance(10_000)
    await settle()
    assert started == []
    clock.advance(5_000)
    await delivery
    assert len(started) == 1


async def test_waiting_for_the_due_time_can_be_given_up(make_station: MakeStation, make_record: MakeRecord) -> None:
    """A record that is due in a year must not hold up a rebalance, and its handler must not start."""
    out, _ = the(await deliver_once(make_station(failing(BankDownError()), "10s"), make_record()))
    calls: list[object] = []

    async def handler(value: bytes) -> None:
        calls.append(value)

    runs: list[Run] = []
    delivery = asyncio.create_task(deliver_once(make_station(handler, "10s"), again(out), on_run=runs.append))
    await settle()
    runs[0].abort()
    await settle()
    assert delivery.done()
    with pytest.raises(RunAbortedError):
        await delivery
    assert calls == []


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "attempt"),
    [(RETRY_ATTEMPT, b"many", 2), (RETRY_DUE_MS, b"soon", 2), (RETRY_DUE_MS, None, 2)],
)
async def test_damaged_metadata_means_dead_and_never_a_counter_set_back(
    make_station: MakeStation,
    make_record: MakeRecord,
    clock: VirtualClock,
    name: str,
    value: bytes | None,
    attempt: int,
) -> None:
    """The handler is not asked; what can be read is kept; the attempt is that of the history if its header is not."""
    station = make_station(failing(BankDownError()), "1s 10s 1m")
    record = make_record(headers=USER_HEADERS)
    for _ in range(2):
        out, metadata = the(await deliver_once(station, record))
        clock.advance(60_000)
        record = again(out)
    headers = tuple((n, value if n == name else v) for n, v in record.headers if (n, value) != (name, None))
    calls: list[object] = []

    async def handler(given: bytes) -> None:
        calls.append(given)

    turn = await deliver_once(make_station(handler), replace(record, headers=headers))
    dead, metadata = the(turn)
    assert (dead.topic, dead.key, dead.value, dead.headers[:2]) == ("app.orders.dlq", b"k", b"v", USER_HEADERS)
    assert (metadata.reason, metadata.attempt, metadata.origin.offset) == ("damaged", attempt, 42)
    assert name in metadata.error_message
    assert (calls, turn.next_offset) == ([], record.offset + 1)


async def test_a_redelivery_without_any_metadata_is_damaged_and_not_a_first_delivery(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
    """Somebody else wrote to our topic."""
    calls: list[object] = []

    async def handler(given: bytes) -> None:
        calls.append(given)

    stray = replace(make_record(), topic="app.orders.redelivery")
    dead, metadata = the(await deliver_once(make_station(handler), stray))
    assert (dead.topic, metadata.reason, calls) == ("app.orders.dlq", "damaged", [])


async def test_a_dead_letter_copied_to_the_main_topic_is_a_new_record(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
    """Our headers on it are neither believed nor shown."""
    _, dead = the(await deliver_once(make_station(failing(Reject())), make_record()))
    seen: list[Delivery] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery)

    await deliver_once(make_station(handler), make_record(offset=99, headers=encode_metadata(dead)))
    assert (seen[0].attempt, seen[0].origin.offset, seen[0].headers) == (1, 99, ())


# -- what a handler may do --------------------------------------------------------------------------------------------


async def test_a_handler_that_runs_too_long_is_cancelled_and_tried_again(
    make_station: MakeStation, make_record: MakeRecord, clock: VirtualClock
) -> None:
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


async def test_a_group_of_errors_is_told_by_its_members(make_station: MakeStation, make_record: MakeRecord) -> None:
    """Even of those that end other programs."""
    group = BaseExceptionGroup("group", [SystemExit(1), Reject("bad")])
    _, metadata = the(await deliver_once(make_station(failing(group)), make_record()))
    assert metadata.reason == "rejected"


async def test_a_time_out_of_the_handlers_own_is_its_own(make_station: MakeStation, make_record: MakeRecord) -> None:
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
async def test_whatever_a_handler_raises_is_a_failure_of_the_record(
    make_station: MakeStation, make_record: MakeRecord, error: BaseException
) -> None:
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
async def test_an_error_that_cannot_be_looked_at_is_a_failure_of_the_record(
    make_station: MakeStation, make_record: MakeRecord, error: BaseException
) -> None:
    """Its own code runs when it is judged: that must neither end the worker nor be met again for ever."""
    out, metadata = the(await deliver_once(make_station(failing(error)), make_record()))
    assert (out.topic, metadata.attempt) == ("app.orders.retry", 1)
    assert metadata.error_type.endswith("UnprintableError")


@pytest.mark.parametrize("error", [StopIteration(1), SystemExit(3), ValueError("no")], ids=lambda e: type(e).__name__)
async def test_whatever_a_plain_function_raises_is_a_failure_of_the_record(
    make_station: MakeStation, make_record: MakeRecord, error: BaseException
) -> None:
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


async def test_a_handler_that_cancels_its_own_task_fails_and_spares_the_worker(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
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


async def test_a_handler_that_leaves_a_cancellation_behind_does_not_hit_the_worker(
    make_station: MakeStation, make_record: MakeRecord
) -> None:
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


async def test_a_worker_that_is_cancelled_ends(make_station: MakeStation, make_record: MakeRecord) -> None:
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


async def test_a_run_that_is_given_up_has_no_outcome(make_station: MakeStation, make_record: MakeRecord) -> None:
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

"""Commands: obeyed once, in order, over crashes, or refused with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import CONTROL, DLQ, about, post, reopen, serving, tell

from retryapp import Batch, CircuitBreaker, Reject, RetryPolicy, Unavailable, non_retryable
from retryapp.core.control import COMMAND_AGE_MS, OF_LETTERS, Command, LetterMark, MarkKind, Verb, mark_of, row_state
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.rates import parse_rate
from retryapp.core.record import idempotency_key
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step

FIRST = "app/orders@kq8G0bTz/0/0"


class Calls:
    """A handler that fails for as long as it is told to."""

    def __init__(self) -> None:
        self.failing = True
        self.error: type[Exception] = ValueError
        self.seen: list[tuple[bytes, int, int, str]] = []

    async def __call__(self, value: bytes, delivery: Any) -> None:
        self.seen.append((value, delivery.attempt, delivery.replays, delivery.idempotency_key))
        if self.failing:
            raise self.error("down")


def marks(partition: MemoryPartition) -> list[LetterMark]:
    """Return the marks of dead letters, in order."""
    found = (mark_of(record.headers, record.value) for record in partition.records(DLQ))
    return [mark for mark in found if mark is not None]


async def test_retry_now_begins_the_next_attempt_at_once() -> None:
    """Of this record alone, and the event says who asked and why."""
    async with serving(Calls(), "1h*3", b"one", b"two") as (orders, calls):
        calls.failing = False
        outcome = await orders.command("retry-now", 0, by="ann", why="mended")
        assert (outcome["refused"], outcome["by"], outcome["why"]) == (None, "ann", "mended")
        assert outcome["before"] != outcome["after"]
        assert [call[:2] for call in calls.seen] == [(b"one", 1), (b"two", 1), (b"one", 2)]
        assert orders.waiting == {"1h": 1}


@pytest.mark.parametrize(
    ("wait_ms", "text"),
    [(-5, "due now"), (250, "due in 250ms"), (7_200_500, "due in 2h"), (4_000 * 86_400_000, "due in more than 3650d")],
)
async def test_an_outcome_says_when_a_record_is_due(wait_ms: int, text: str) -> None:
    """As a person reads it, not in milliseconds; also further away than a duration may be."""
    async with serving(Calls(), "1h*3", b"one") as (orders, _):
        outcome = await orders.command("reschedule", 0, due_at_ms=orders.clock.wall_ms() + wait_ms)
        assert outcome["text"] == text


GATES: dict[str, tuple[dict[str, Any], list[HandlerVerb], str]] = {
    "a pause": ({}, [HandlerVerb.PAUSE], "deliveries are paused"),
    "an outage": ({"circuit": CircuitBreaker()}, [HandlerVerb.OPEN], "an outage is on, which holds it back"),
    "a rate": ({"rate_limit": parse_rate("1/h")}, [], "a rate limit holds it back"),
    "a rate of its service": (
        {"circuits": {"ledger": CircuitBreaker(rate_limit="1/h")}}, [], "a rate limit holds it back"
    ),
    "two": (
        {"circuit": CircuitBreaker()}, [HandlerVerb.PAUSE, HandlerVerb.OPEN],
        "deliveries are paused; an outage is on, which holds it back",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GATES)
async def test_retry_now_names_what_still_holds_the_record_back(name: str) -> None:
    """It changes the time alone; who reads "due now" waits for an attempt that does not come."""
    more, verbs, gates = GATES[name]

    async def handle(_value: bytes) -> None:
        raise Unavailable("ledger", "down") if "circuits" in more else ValueError("down")

    async with serving(handle, "1h*3", b"one", **more) as (orders, _):
        for verb in verbs:
            await orders.obey(HandlerCommand(id=verb, verb=verb))
        told = await orders.command("retry-now", 0)
        assert (told["refused"], told["text"]) == (None, f"due now; {gates}")
        await orders.command("hold", 0)
        assert (await orders.command("release", 0))["text"] == f"due now; {gates}"


async def test_retry_now_names_earlier_records_of_its_key() -> None:
    """A replay takes its place before one that has failed since."""
    async with serving(Calls(), RetryPolicy("1h*3", on=non_retryable(KeyError)), order="key") as (orders, calls):
        calls.error = KeyError
        await orders.send(b"one", key=b"k")
        calls.error = ValueError
        await orders.send(b"two", key=b"k")
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        assert (await orders.command("replay", 0))["refused"] is None
        text = (await orders.command("retry-now", 1))["text"]
        assert text == "due now; deliveries are paused; it runs after the earlier records of its key"


async def test_reschedule_is_never_before_now() -> None:
    """To the millisecond; a time that has passed means now."""
    async with serving(Calls(), "1h*3", b"one") as (orders, calls):
        due_ms = orders.clock.wall_ms() + 5_000
        assert (await orders.command("reschedule", 0, due_at_ms=due_ms))["refused"] is None
        await orders.advance(4_999)
        assert len(calls.seen) == 1
        await orders.advance(1)
        assert len(calls.seen) == 2
        await orders.command("reschedule", 0, due_at_ms=0)
        assert len(calls.seen) == 3


async def test_a_cancelled_record_is_dead_and_not_tried_again() -> None:
    """Its delivery number goes on, its attempts stay, and no handler has spent the time that it has waited."""
    async with serving(Calls(), "1h*3", b"one") as (orders, calls):
        await orders.advance(60_000)
        assert (await orders.command("cancel", 0))["after"] == "dead"
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.attempt, letter.delivery) == ("cancelled", 1, 2)
        assert letter.last_failed_ms - letter.started_ms == 0
        await orders.to_rest()
        assert len(calls.seen) == 1
        assert (await orders.command("cancel", 0))["refused"] == "not-waiting"


async def test_a_record_that_is_claimed_and_has_not_begun_does_not_begin() -> None:
    """It waits for a runner when the command comes."""
    gate, calls = asyncio.Event(), []

    async def handle(value: bytes, delivery: Any) -> None:
        calls.append((value, delivery.attempt))
        if delivery.attempt > 1:
            await gate.wait()
        raise ValueError("down")

    async with serving(handle, "1s*3", b"one", b"two", concurrency=1) as (orders, _):
        await orders.advance(1_000)
        assert calls[2:] == [(b"one", 2)]
        told = await orders.command("retry-now", 1)
        again = "attempt 2 is about to begin: send it again once that has ended"
        assert (told["refused"], told["text"]) == ("running", again)
        assert (await orders.command("cancel", 1))["text"] == "attempt 2 was about to begin, and does not"
        gate.set()
        await orders.to_rest()
        assert (b"two", 2) not in calls
        assert {letter.reason for letter in orders.dead_letters} == {"cancelled", "exhausted"}


async def test_a_record_that_runs_is_cancelled_after_its_run_unless_that_succeeds() -> None:
    """Its handler is never interrupted; other commands about it are refused."""
    gate, calls = asyncio.Event(), []

    async def handle(value: bytes, delivery: Any) -> None:
        calls.append(delivery.attempt)
        if delivery.attempt > 1:
            await gate.wait()
        if delivery.attempt == 1 or value == b"bad":
            raise ValueError("down")

    async with serving(handle, "1s 1h 1h", b"bad", b"good", concurrency=2) as (orders, _):
        await orders.advance(1_000)
        for offset in (0, 1):
            assert (await orders.command("retry-now", offset))["refused"] == "running"
            assert (await orders.command("cancel", offset))["after"] == "cancelling"
        await orders.advance(500)
        gate.set()
        await orders.to_rest()
        (letter,) = orders.dead_letters
        assert letter.last_failed_ms - letter.started_ms >= 500
        assert (letter.origin.offset, letter.reason, letter.attempt, letter.error_message) == (
            0,
            "cancelled",
            2,
            "down",
        )
        assert calls == [1, 1, 2, 2]


async def test_a_cancelled_run_that_a_crash_ends_is_not_run_again() -> None:
    """The flag in its row outlives the worker."""
    runs = []

    async def handle(_value: bytes, delivery: Any) -> None:
        runs.append(delivery.attempt)
        if delivery.attempt > 1:
            await asyncio.Event().wait()
        raise ValueError("down")

    async with serving(handle, "1s 1h", b"one") as (orders, _):
        await orders.advance(1_000)
        await orders.command("cancel", 0)
    async with MemoryPartition(handle, "1s 1h", transport=orders.transport) as orders:
        assert [letter.reason for letter in orders.dead_letters] == ["cancelled"]
        assert runs == [1, 2]


async def test_a_replay_keeps_the_record_and_begins_its_attempts_anew() -> None:
    """The same idempotency key; once for each letter; marks tell of it on the topic."""
    async with serving(Calls(), "1s", b"one", key=b"k", headers=(("trace", b"7"),)) as (orders, calls):
        await orders.to_rest()
        calls.failing = False
        outcome = await orders.command("replay", 0)
        assert outcome["refused"] is None
        assert [call[1:3] for call in calls.seen] == [(1, 0), (2, 0), (1, 1)]
        assert {call[3] for call in calls.seen} == {idempotency_key(FIRST)}
        assert [mark.mark for mark in marks(orders)] == [MarkKind.REPLAYED, MarkKind.RECOVERED]
        assert (await orders.command("replay", 0))["refused"] == "replayed"
        assert (await orders.command("discard", 0))["refused"] == "replayed"


async def test_a_replay_ends_although_no_rule_names_the_topic_of_its_letter_any_more() -> None:
    """Somebody may have deleted that topic: a mark on it would be refused for ever."""

    async def handle(_value: bytes, delivery: Any) -> None:
        if delivery.attempt == 1:
            raise ConnectionError if delivery.replays else ValueError

    policy = RetryPolicy("1h", on=non_retryable(ValueError, dead_letters="invalid"))
    async with serving(handle, policy, b"one") as (orders, _):
        letters = orders.handler.topology.dlq_named("invalid")
        await orders.command("replay", 0)
        await orders.settle()
        assert orders.waiting == {"1h": 1}
        count = len(orders.records(letters))
    async with MemoryPartition(handle, "1h", transport=orders.transport) as orders:
        await orders.to_rest()
        assert (orders.waiting, len(orders.records(letters))) == ({}, count)


async def test_a_letter_that_dies_again_can_be_replayed_again() -> None:
    """Each time with new attempts, and delivery numbers that go on."""
    async with serving(Calls(), "1s", b"one") as (orders, _):
        for _ in range(3):
            await orders.to_rest()
            assert (await orders.command("replay", 0))["refused"] is None
        assert (await orders.command("replay", 0))["refused"] == "waiting"
        await orders.to_rest()
        assert [letter.replays for letter in orders.dead_letters] == [0, 1, 2, 3]
        assert [letter.delivery for letter in orders.dead_letters] == [2, 5, 8, 11]
        assert [letter.attempt for letter in orders.dead_letters] == [2, 2, 2, 2]


async def test_a_letter_is_discarded_and_restored() -> None:
    """In between it cannot be replayed."""
    async with serving(Calls(), "1s", b"one") as (orders, _):
        await orders.to_rest()
        assert (await orders.command("restore", 0))["refused"] == "not-discarded"
        assert (await orders.command("discard", 0))["refused"] is None
        assert (await orders.command("discard", 0))["refused"] == "discarded"
        assert (await orders.command("replay", 0))["refused"] == "discarded"
        assert (await orders.command("restore", 0))["refused"] is None
        assert (await orders.command("replay", 0))["refused"] is None


@pytest.mark.parametrize(("verb", "durable"), [(verb, each) for verb in Verb for each in (False, True)])
async def test_a_crash_in_its_commit_neither_loses_nor_doubles_a_command(verb: Verb, durable: bool) -> None:
    """Before and after the commit takes effect."""
    calls = Calls()
    more = {"due_at_ms": 1 << 41} if verb is Verb.RESCHEDULE else {}
    async with serving(calls, "1h 1h", b"one") as (orders, _):
        if verb in OF_LETTERS:
            await orders.command("cancel", 0)
        if verb is Verb.RELEASE:
            await orders.command("hold", 0)
        if verb is Verb.RESTORE:
            await orders.command("discard", 0)
        dying = orders.transport.pause(Step.COMMIT, durable=durable)
        post(orders, about("dying", verb, 0, **more))
        await orders.settle()
        assert dying.reached
    calls.failing = False
    async with MemoryPartition(calls, "1h 1h", transport=orders.transport) as orders:
        await orders.settle()
        events = [each for each in orders.records("app.orders.events") if b'"command":"dying"' in (each.value or b"")]
        assert len(events) == 1
        assert b'"refused":null' in (events[0].value or b"")


async def test_bad_commands_are_refused_and_stop_nothing() -> None:
    async with serving(Calls(), "1h*3", b"one") as (orders, _):
        bad = [None, b"", b"[]", b'{"v":2}', b"x" * 20_000, b'{"v":1,"id":"a","verb":"fly","failure_id":"x"}']
        other = Command(id="m", verb=Verb.CANCEL, failure_id="app/orders@kq8G0bTz/1/0").to_record(*CONTROL)
        for value in (*bad, other.value):
            orders.transport.append(CONTROL, None, value)
        assert (await orders.command("cancel", 0))["refused"] is None
        events = [
            record.value or b""
            for record in orders.records("app.orders.events")
            if b'"command"' in (record.value or b"")
        ]
        assert sum(b'"refused":"malformed"' in event for event in events) == len(bad)
        assert sum(b'"refused":"misplaced"' in event for event in events) == 1


async def test_a_command_that_no_worker_took_in_time_is_refused() -> None:
    """Nobody expects it any more."""
    async with serving(Calls(), "10h*3") as (orders, calls):
        await orders.send(b"one")
    post(orders, about("late", Verb.CANCEL, 0))
    orders.clock.advance(COMMAND_AGE_MS + 1)
    async with MemoryPartition(calls, "10h*3", transport=orders.transport) as orders:
        assert orders.waiting == {"10h": 1}
        assert any(b'"refused":"expired"' in (record.value or b"") for record in orders.records("app.orders.events"))


async def test_a_state_that_has_changed_refuses_a_command() -> None:
    """The refusal names the present one."""
    async with serving(Calls(), "1h*3", b"one") as (orders, _):
        state = row_state(0, 1, orders.clock.wall_ms() + 3_600_000)
        await orders.command("retry-now", 0)
        refused = await orders.command("cancel", 0, state=state)
        assert refused["refused"] == "changed"
        assert state in refused["text"]
        assert "look at it again" in refused["text"]


async def test_a_rejected_letter_of_a_null_value_comes_back_as_null() -> None:
    """It travels as empty."""
    values = []

    async def handle(value: bytes | None) -> None:
        values.append(value)
        raise Reject("no")

    async with serving(handle, "1s", None) as (orders, _):
        await orders.command("replay", 0)
        assert values == [None, None]


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_a_cancelled_head_lets_its_followers_go(order: str) -> None:
    """A follower is cancelled too, but never called before its turn."""
    seen = []

    async def handle(value: bytes) -> None:
        seen.append(value)
        if value == b"1":
            raise ValueError("down")

    async with serving(handle, "1h*3", b"1", b"2", b"3", key=b"k", order=Order(order)) as (orders, _):
        assert seen == [b"1"]
        if order == "key":
            assert (await orders.command("retry-now", 1))["refused"] == "held"
            assert (await orders.command("cancel", 1))["after"] == "dead"
        assert (await orders.command("cancel", 0))["after"] == "dead"
        assert seen == ([b"1", b"3"] if order == "key" else [b"1", b"2", b"3"])
        assert await orders.to_rest() < 1_000  # until the offset is committed


async def test_a_replayed_record_goes_before_those_of_its_key_that_wait() -> None:
    """It takes its place by offset."""
    seen, failing = [], {b"1", b"2"}

    async def handle(value: bytes) -> None:
        seen.append(value)
        if value in failing:
            raise Reject("no") if value == b"1" else ValueError("down")

    async with serving(handle, "1h*3", b"1", b"2", b"3", key=b"k", order=Order.KEY) as (orders, _):
        assert seen == [b"1", b"2"]
        failing.clear()
        assert (await orders.command("replay", 0))["refused"] is None
        assert seen == [b"1", b"2", b"1"]
        await orders.to_rest()
        assert seen == [b"1", b"2", b"1", b"2", b"3"]


async def test_a_replayed_record_that_took_too_long_runs_alone() -> None:
    """In a handler that takes lists: its neighbours would die of its time-out."""
    sizes, slow = [], asyncio.Event()

    async def handle(values: list[bytes]) -> None:
        sizes.append(len(values))
        if b"slow" in values and not slow.is_set():
            await asyncio.sleep(3_600)

    policy = RetryPolicy("1s*1", timeout="5s")
    async with serving(handle, policy, b"slow", b"slow", batch=Batch(3, "50ms")) as (orders, _):
        await orders.to_rest()
        slow.set()
        sizes.clear()
        for number in range(2):
            post(orders, about(f"c{number}", Verb.REPLAY, number))
        await orders.advance(100)
        assert sizes == [1, 1]


async def test_a_record_that_is_cancelled_is_not_rescheduled() -> None:
    """No attempt would come: it is dead as soon as deliveries go on."""
    goes_on, began = asyncio.Event(), list[bytes]()

    async def handle(value: bytes) -> None:
        began.append(value)
        if len(began) > 1:
            await goes_on.wait()
        raise ValueError(value)

    async with serving(handle, "1s*5", b"x") as (orders, _):
        await orders.advance(1_000)
        assert (await orders.command("cancel", 0))["after"] == "cancelling"
        await tell(orders, HandlerVerb.PAUSE)
        await reopen(orders)
        later_ms = orders.clock.wall_ms() + 3_600_000
        assert (await orders.command("reschedule", 0, due_at_ms=later_ms))["refused"] == "not-waiting"
        assert (await orders.command("retry-now", 0))["refused"] == "not-waiting"

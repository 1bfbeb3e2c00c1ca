"""Handlers of dead letters, and handlers that have no dead-letter topic, in memory."""

from __future__ import annotations

from typing import Any

import faust
import pytest
from doubles import USER_HEADERS, events_of, failing, make_context, make_record, serving

from retryapp import Delivery, Reject, Retries, RetryPolicy, Skip
from retryapp.core.control import LetterMark, MarkKind
from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import RETRY_ATTEMPT, RETRY_NULL_VALUE, RETRY_REASON
from retryapp.core.letters import Letter
from retryapp.core.lifecycle import Discarded, Handled, Skipped, Succeeded, decode_event
from retryapp.core.record import Damage, Headers, Record, failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery.damage import last_resort
from retryapp.engine.delivery.deliver import crashed, unpack
from retryapp.engine.delivery.run import Run
from retryapp.ports import Event
from retryapp.testing import MemoryPartition

LETTERS = "shop.orders.dlq"
DROPPED = HandlerTopology("app", "orders", delays_ms=(1_000,), drop=True)


class Seen:
    """A handler of letters that keeps what it gets, and fails as often as it is told."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.calls = list(errors), list[tuple[Any, Delivery]]()

    async def __call__(self, value: Any, delivery: Delivery) -> None:
        self.calls.append((value, delivery))
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
async def retries() -> Retries:
    """An app whose orders all die, and whose dead letters have a handler."""

    async def charge(_order: bytes | None) -> None:
        raise Reject("no such customer")

    made = Retries(faust.App("shop", broker="kafka://127.0.0.1:1", store="memory://"))
    made.handler("orders", policy="1s")(charge)
    made.dead_letters("orders", policy="1m*2")(Seen())
    return made


async def letter_of(retries: Retries, value: bytes | None = b"v", headers: Headers = USER_HEADERS) -> Record:
    """Have an order die, and return its dead letter."""
    async with MemoryPartition.of(retries, "orders") as orders:
        await orders.send(value, key=b"k", headers=headers)
        (letter,) = orders.records(LETTERS)
    return letter


async def test_the_handler_sees_the_record_and_why_it_died(retries: Retries) -> None:
    """At every attempt; headers of the user's alone, the value as it was. Its own failures are apart."""
    letter, seen = await letter_of(retries), Seen(OSError("away"))
    async with MemoryPartition.of(retries, LETTERS, function=seen) as letters:
        await letters.send(letter.value, key=letter.key, headers=letter.headers)
        assert letters.waiting == {"1m": 1}
        await letters.to_rest()
        assert [(value, delivery.attempt) for value, delivery in seen.calls] == [(b"v", 1), (b"v", 2)]
        for _, delivery in seen.calls:
            assert (delivery.key, delivery.headers, delivery.origin.topic) == (b"k", USER_HEADERS, LETTERS)
            told = delivery.letter
            assert told is not None
            assert (told.reason, told.attempts, told.rule, told.damage) == ("rejected", 1, None, None)
            assert (told.error_type, told.error_message) == ("retryapp.Reject", "no such customer")
            assert told.origin is not None
            assert (told.origin.topic, told.origin.partition, told.origin.offset) == ("orders", 0, 0)
            assert told.first_failed_ms == told.last_failed_ms is not None
        assert seen.calls[1][1].last_error_message == "away"
        (mark,) = events_of(letters, Handled)
        (done,) = events_of(letters, Succeeded)
        assert mark.failure_id == done.failure_id == seen.calls[0][1].failure_id
        assert mark.failure_id.startswith(f"shop/{LETTERS}@")


async def test_a_second_app_sees_why_the_record_died(retries: Retries) -> None:
    """It takes letters and no marks of commands, tries again by a policy of its own, and leaves the letter alone."""
    letter, seen = await letter_of(retries), Seen(OSError("away"))
    other = Retries(faust.App("alarms", broker="kafka://127.0.0.1:1", store="memory://"))
    other.dead_letters("orders", group="shop", policy="1m*2")(seen)
    facts: Any = {"failure_id": "shop/orders@-/0/0", "letter": 0, "delivery": 1, "replays": 0, "command": "c"}
    mark = LetterMark(mark=MarkKind.DISCARDED, **facts).to_record(LETTERS, 0)
    async with MemoryPartition.of(other, LETTERS) as letters:
        await letters.send(letter.value, key=letter.key, headers=letter.headers)
        await letters.send(mark.value, headers=mark.headers)
        await letters.to_rest()
        assert [(value, delivery.attempt) for value, delivery in seen.calls] == [(b"v", 1), (b"v", 2)]
        told = seen.calls[1][1].letter
        assert told is not None
        assert (told.reason, told.error_message) == ("rejected", "no such customer")
        assert seen.calls[1][1].headers == USER_HEADERS
        written = {out.topic for batch in letters.transport.batches for out in batch.publishes}
        assert written == {f"alarms.{LETTERS}.retry", f"alarms.{LETTERS}.events"}, "nothing on the other group's topics"


async def test_a_letter_that_is_handled_at_once_is_marked_in_the_turn_of_its_offset(retries: Retries) -> None:
    """Or skipped, which its own event says."""
    async with MemoryPartition.of(retries, LETTERS, function=Seen()) as letters:
        await letters.send(b"1", b"2")
        marks = events_of(letters, Handled)
        assert [mark.origin.rsplit("/", 1)[1] for mark in marks] == ["0", "1"]
        marked = [batch for batch in letters.transport.batches if batch.publishes]
        assert all(letters.engine.sources[0] in batch.offsets for batch in marked)
    async with MemoryPartition.of(retries, LETTERS, function=Seen(Skip("not ours"))) as letters:
        await letters.send(b"1")
        assert (events_of(letters, Handled), [skip.why for skip in events_of(letters, Skipped)]) == ([], ["not ours"])


async def test_a_letter_that_fails_for_good_stays_and_is_marked(retries: Retries) -> None:
    seen = Seen(*[OSError("away")] * 3)
    async with MemoryPartition.of(retries, LETTERS, function=seen) as letters:
        await letters.send(b"v")
        await letters.to_rest()
        (mark,) = events_of(letters, Discarded, Handled)
        assert (mark.kind, mark.reason, mark.attempt, mark.error_message) == ("failed", "exhausted", 3, "away")
        assert mark.failure_id == seen.calls[0][1].failure_id
        assert (letters.dead_letters, letters.waiting, letters.records(f"shop.{LETTERS}.dlq")) == ([], {}, [])
        told = [each.event for each in letters.observer.seen if each.event in (Event.DEAD, Event.LETTER_FAILED)]
        assert told == [Event.LETTER_FAILED]


async def test_a_null_value_is_null_again(retries: Retries) -> None:
    """It travels as empty, also while the letter waits."""
    letter, seen = await letter_of(retries, None), Seen(OSError())
    assert (letter.value, (RETRY_NULL_VALUE, b"1") in letter.headers) == (b"", True)
    async with MemoryPartition.of(retries, LETTERS, function=seen) as letters:
        await letters.send(letter.value, headers=letter.headers)
        await letters.to_rest()
        assert [(value, delivery.raw_value) for value, delivery in seen.calls] == [(None, None)] * 2


async def test_a_header_of_the_users_with_one_of_our_names_comes_back(retries: Retries) -> None:
    """The letter's own ones are not mixed up with it, nor with those of the handler's own retries."""
    mine: Headers = ((RETRY_REASON, b"mine"), ("retry-foreign-x", b"1"), ("h", None))
    letter, seen = await letter_of(retries, headers=mine), Seen(OSError())
    async with MemoryPartition.of(retries, LETTERS, function=seen) as letters:
        await letters.send(letter.value, headers=letter.headers)
        await letters.to_rest()
        assert [delivery.headers for _, delivery in seen.calls] == [mine] * 2
        assert [delivery.letter and delivery.letter.reason for _, delivery in seen.calls] == ["rejected"] * 2


async def test_a_damaged_letter_is_given_with_what_can_be_read(retries: Retries) -> None:
    """So is one that another program wrote."""
    letter, seen = await letter_of(retries), Seen()
    torn = tuple((name, b"x" if name == RETRY_ATTEMPT else raw) for name, raw in letter.headers)
    async with MemoryPartition.of(retries, LETTERS, function=seen) as letters:
        await letters.send(b"1", headers=torn)
        await letters.send(b"2", headers=USER_HEADERS)
        first, second = (delivery.letter for _, delivery in seen.calls)
        assert isinstance(first, Letter)
        assert (first.attempts, first.reason, first.error_message) == (None, "rejected", "no such customer")
        assert first.damage is not None
        assert RETRY_ATTEMPT in first.damage
        assert isinstance(second, Letter)
        assert (second.reason, second.origin, second.damage) == (
            None, None, "no retry headers: somebody else wrote this record",
        )  # fmt: skip
        assert seen.calls[1][1].headers == USER_HEADERS


async def test_a_letter_whose_group_is_none_is_given_once(retries: Retries) -> None:
    """A group with a slash makes no failure id: there is no mark, and no fault of ours that stops the partition."""
    seen, headers = Seen(), (("retry-group", b"a%2Fb"), ("retry-origin", b"orders@kq8G0bTz/0/1"))
    async with MemoryPartition.of(retries, LETTERS, function=seen) as letters:
        await letters.send(b"v", headers=headers)
        await letters.advance(10_000)
        assert (
            len(seen.calls),
            len(events_of(letters, Handled)),
            letters.transport.offsets[letters.engine.sources[0]],
        ) == (1, 1, 1)


async def test_other_handlers_have_no_letter(retries: Retries) -> None:
    """A dead letter that was copied to a main topic is a new record."""
    letter, seen = await letter_of(retries), Seen()
    async with MemoryPartition.of(retries, "orders", function=seen) as orders:
        await orders.send(letter.value, headers=letter.headers)
        assert [(delivery.letter, delivery.headers) for _, delivery in seen.calls] == [(None, USER_HEADERS)]
        assert orders.records("shop.orders.events") == []


# -- no dead-letter topic ---------------------------------------------------------------------------------------------


async def test_what_is_dropped_leaves_an_event_that_says_what_a_dead_letter_would() -> None:
    """After its attempts, at once where it is no use, and nothing else."""
    async with serving(failing(OSError("away")), "1s", b"v", key=b"k", topology=DROPPED) as (orders, _):
        await orders.to_rest()
        (event,) = events_of(orders, object)
        assert (event.kind, event.reason, event.attempt, event.delivery) == ("discarded", "exhausted", 2, 2)
        assert (event.error_type, event.error_message, event.handler) == ("OSError", "away", orders.handler.name)
        assert event.fingerprint == orders.observer.seen[-1].fingerprint
        assert event.first_failed_ms < event.started_ms <= event.ended_ms
        assert (orders.waiting, orders.records("app.orders.dlq")) == ({}, [])
        assert [each.event for each in orders.observer.seen][-1] is Event.DISCARDED


def told(turn: Any) -> Discarded:
    (out,) = turn.publishes
    assert out.topic == DROPPED.events
    event = decode_event(out.value)
    assert isinstance(event, Discarded)
    return event


def dropping(function: Any = None) -> Any:
    context = make_context(function or failing(OSError()), "1s")
    object.__setattr__(context.handler, "topology", DROPPED)
    return context


class UnprintableError(Exception):
    """Its type and text do not become UTF-8."""

    def __str__(self) -> str:
        return "\udcff" + "x" * 5_000


async def test_every_way_to_die_is_told() -> None:
    """A batch that cannot be read, a record that kills, a failure that cannot be written down."""
    record = make_record(None)
    damaged = Record("orders", 0, 7, 1, None, None, (), damage=Damage(12, "bad checksum \udcff" + "x" * 5_000))
    run = Run(None, dropping(), damaged)  # type: ignore[arg-type]
    turn = unpack(run)
    assert turn is not None
    assert (told(turn).reason, "offsets 7 to 12" in told(turn).error_message) == ("damaged", True)
    assert len(told(turn).error_message.encode()) == 1_024
    assert [each.event for each in turn.observations] == [Event.DAMAGED, Event.DISCARDED]
    turn = crashed(Run(None, dropping(), record), 3)  # type: ignore[arg-type]
    assert (told(turn).reason, turn.next_offset) == ("crashed", record.offset + 1)
    turn = last_resort(Run(None, dropping(), record), UnprintableError(), ValueError("odd"), 5)  # type: ignore[arg-type]
    assert (told(turn).reason, told(turn).failure_id) == (
        "damaged", failure_id("app", run.origin).replace("/7", "/42"),
    )  # fmt: skip
    turn = last_resort(Run(None, dropping(), record), DamagedMetadataError("h", "odd"), UnprintableError(), 5)  # type: ignore[arg-type]
    assert len(turn.publishes[0].value or b"") < 4_096


async def test_a_policy_decides_what_is_dropped() -> None:
    """A long message is cut, as in a header."""
    async with MemoryPartition(
        failing(UnprintableError()), RetryPolicy("1s", otherwise="non-retryable"), topology=DROPPED
    ) as orders:
        await orders.send(b"v")
        (event,) = events_of(orders, object)
        assert (event.reason, len(event.error_message.encode())) == ("non-retryable", 1_024)

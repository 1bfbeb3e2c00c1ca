"""One delivery becomes one turn."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
from doubles import (
    MAIN,
    USER_HEADERS,
    BankDownError,
    Due,
    Owner,
    again,
    claimed,
    deliver_once,
    failing,
    fine,
    make_context,
    make_record,
    running_clock,
    serving,
    the,
)
from pydantic import BaseModel, field_validator

from retryapp.core.batch import Batch
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.hops import to_row
from retryapp.core.lifecycle import Skipped, Succeeded, decode_event
from retryapp.core.masking import parse_mask
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin, Record
from retryapp.core.rows import decode_row, encode_row
from retryapp.core.rules import non_retryable, retryable, skippable
from retryapp.core.verdicts import Reject, Skip
from retryapp.engine.delivery import judge
from retryapp.engine.delivery.damage import last_resort
from retryapp.engine.delivery.deliver import crashed
from retryapp.engine.delivery.run import Run
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.handler.publish import Destinations
from retryapp.ports import Event
from retryapp.testing import MemoryDestinations, MemoryPartition, VirtualClock

# -- what becomes of a first delivery ---------------------------------------------------------------------------------


async def test_a_failure_goes_to_the_retry_topic_with_its_due_time_and_its_story(clock: VirtualClock) -> None:
    """Every header that the next delivery needs."""
    context = make_context(failing(BankDownError("no answer")), "1s 10s")
    now_ms = clock.wall_ms()
    turn = await deliver_once(context, make_record(offset=42, headers=USER_HEADERS))
    out, metadata = the(turn)
    assert (out.topic, out.partition, out.key, out.value) == ("app.orders.retry", 0, b"k", b"v")
    assert out.headers[:2] == USER_HEADERS
    assert metadata.origin == Origin("orders", "kq8G0bTz", 0, 42)
    assert (metadata.group, metadata.handler) == ("app", context.handler.name)
    assert (metadata.attempt, metadata.due_at_ms, metadata.tier) == (1, now_ms + 1_000, "1s")
    assert (metadata.first_failed_ms, metadata.last_failed_ms, metadata.started_ms) == (now_ms,) * 3
    assert metadata.origin_timestamp_ms == 1_600_000_000_000
    assert metadata.error_type.endswith("BankDownError")
    assert metadata.error_message == "no answer"
    assert (metadata.policy, metadata.reason, metadata.error_trace) == (context.handler.policy.digest, None, None)
    assert (turn.source, turn.next_offset) == (MAIN, 43)
    assert [o.event for o in turn.observations] == [Event.FAILED, Event.SCHEDULED]


async def test_each_copy_and_event_says_which_worker_ran_the_attempt(clock: VirtualClock) -> None:
    """A retry, a dead letter, a success after it, and a skip; a first delivery that succeeds leaves nothing."""
    for function, policy in ((failing(BankDownError()), "1s"), (failing(Reject("no")), "1s")):
        context = replace(make_context(function, policy), worker="host/worker-1")
        _, metadata = the(await deliver_once(context, make_record()))
        assert metadata.worker == "host/worker-1"
        assert decode_metadata(encode_metadata(metadata)) == metadata
    failed = await deliver_once(make_context(failing(BankDownError()), "1s"), make_record())
    clock.advance(1_000)
    other = replace(make_context(fine), worker="other/worker-2")
    turn = await deliver_once(other, again(other, failed))
    (event,) = [decode_event(out.value or b"") for out in turn.publishes]
    assert isinstance(event, Succeeded)
    assert event.worker == "other/worker-2"


async def test_the_delay_is_jittered_by_the_stations_random_numbers(clock: VirtualClock) -> None:
    """Jitter only shortens."""
    delays = []
    for rng in (0.0, 0.5):
        context = make_context(failing(BankDownError()), "exp(10s, x2, jitter=0.5, 3)", rng=rng)
        _, metadata = the(await deliver_once(context, make_record()))
        assert metadata.due_at_ms is not None
        delays.append(metadata.due_at_ms - clock.wall_ms())
    assert delays[0] != delays[1]
    assert all(5_000 <= delay <= 10_000 for delay in delays)


async def test_a_failure_counts_from_the_latest_that_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that heard its acknowledgements late takes the broker's time for earlier than the next owner does."""
    context = make_context(failing(BankDownError()), "1s")
    now_ms = context.clock.wall_ms()
    monkeypatch.setattr(context.clock, "latest_ms", lambda: now_ms + 7)
    _, metadata = the(await deliver_once(context, make_record()))
    assert (metadata.last_failed_ms, metadata.due_at_ms) == (now_ms + 7, now_ms + 1_007)


async def test_no_traceback_is_made_of_a_failure_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs more than the rest of the failure, and only a dead letter has it."""
    made: list[BaseException] = []
    monkeypatch.setattr(judge, "shorten_trace", lambda error, _text_of: made.append(error) or "trace")
    error = BankDownError()
    context = make_context(failing(error), "1s")
    waits = await deliver_once(context, make_record())
    assert (the(waits)[1].tier, made) == ("1s", [])
    context.clock.advance(1_000)
    dead = await deliver_once(context, again(context, waits))
    assert (the(dead)[1].error_trace, made) == ("trace", [error])


async def test_a_value_that_cannot_be_decoded_is_dead_at_once_and_keeps_its_bytes() -> None:
    """The handler never sees it, and the message does not quote it."""
    calls: list[object] = []

    async def handler(value: dict[str, int]) -> None:
        calls.append(value)

    turn = await deliver_once(make_context(handler, value_type=dict), make_record(b"{secret"))
    out, metadata = the(turn)
    assert (metadata.reason, metadata.attempt, out.value, calls) == ("undecodable", 1, b"{secret", [])
    assert "secret" not in metadata.error_message


async def test_a_validator_of_the_user_that_raises_is_a_failure_of_the_record() -> None:
    """Decoding runs the user's code too."""

    class Order(BaseModel):
        item: str

        @field_validator("item")
        @classmethod
        def known(cls, item: str) -> str:
            return {"apple": "fruit"}[item]

    out, metadata = the(await deliver_once(make_context(fine, value_type=Order), make_record(b'{"item": "rock"}')))
    assert (out.topic, metadata.error_type) == ("app.orders.retry", "KeyError")


def is_stale(delivery: Delivery, error: BaseException) -> bool:
    """Match later attempts at an order that is gone."""
    return isinstance(error, KeyError) and delivery.attempt > 1


def is_broken(_delivery: Delivery, _error: BaseException) -> bool:
    raise RuntimeError("x")


RULE = "non-retryable=ValueError dead_letters=invalid"


@pytest.mark.parametrize(
    ("error", "size", "topic", "facts"),
    [
        (ValueError("bad"), 1, "app.orders.dlq.invalid", ("non-retryable", None, RULE)),
        (ValueError("bad"), 4_000, "app.orders.dlq.invalid", ("too-large", "non-retryable", RULE)),
        (Reject("no"), 1, "app.orders.dlq", ("rejected", None, None)),
    ],
    ids=["by the rule", "too large", "by a verdict"],
)
async def test_a_rule_names_the_topic_of_its_dead_letters(
    error: Exception, size: int, topic: str, facts: tuple[str | None, ...]
) -> None:
    """Also without the value; one that decides otherwise leaves its letter on the usual one."""
    policy = RetryPolicy("1s", on=non_retryable(ValueError, dead_letters="invalid"))
    context = make_context(failing(error), policy, max_bytes=3_000)
    out, metadata = the(await deliver_once(context, make_record(b"v" * size)))
    assert (out.topic, out.value) == (topic, b"" if size > 1 else b"v")
    assert (metadata.reason, metadata.original_reason, metadata.rule) == facts
    assert "app.orders.dlq.invalid" in context.handler.topology.owned


@pytest.mark.parametrize("by", ["verdict", "rule"])
async def test_a_first_delivery_is_skipped(by: str) -> None:
    """Its offset moves, with an event that says why; nothing that it published goes out."""

    async def handler(_value: bytes, delivery: Delivery) -> None:
        delivery.publish("results", b"x")
        raise Skip("old") if by == "verdict" else KeyError("gone")

    destinations = Destinations(MemoryDestinations(), running_clock(), lambda: ())
    context = make_context(handler, RetryPolicy("1s", on=skippable(KeyError)), destinations=destinations)
    turn = await deliver_once(context, make_record())
    (out,) = turn.publishes
    told = decode_event(out.value or b"")
    assert isinstance(told, Skipped)
    assert (out.topic, told.delivery, told.attempt, told.first_offset) == ("app.orders.events", 1, 1, None)
    expected = ("old", None) if by == "verdict" else ("'gone'", "skippable=KeyError")
    assert (told.why, told.rule, told.at_ms) == (*expected, context.clock.wall_ms())
    assert (turn.next_offset, turn.rows, turn.skipped, turn.fine) == (43, (), True, False)
    assert [o.event for o in turn.observations] == [Event.SKIPPED]


async def test_a_row_that_is_skipped_is_removed(clock: VirtualClock) -> None:
    """A condition sees which attempt it is."""
    policy = RetryPolicy("1s", on=skippable(KeyError, when=is_stale))
    context = make_context(failing(KeyError("gone")), policy)
    first = await deliver_once(context, make_record())
    clock.advance(1_000)
    turn = await deliver_once(context, again(context, first))
    told = decode_event(turn.publishes[0].value or b"")
    assert isinstance(told, Skipped)
    assert (told.delivery, told.attempt, told.failure_id) == (2, 2, "app/orders@kq8G0bTz/0/42")
    assert [(row.identity, row.value) for row in turn.rows] == [(first.rows[0].identity, None)]
    assert (turn.source, turn.skipped) == (None, False), "it was counted when it failed"


def returns_nothing(_delivery: object, _error: BaseException) -> None: ...


@pytest.mark.parametrize(
    ("when", "problem"),
    [(is_broken, "raised RuntimeError at test_deliver.py:"), (returns_nothing, "returned NoneType, not bool: ")],
)
async def test_a_condition_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture, when: Any, problem: str) -> None:
    """The record takes the policy's path."""
    context = make_context(failing(KeyError("x")), RetryPolicy("1s", on=non_retryable(KeyError, when=when)))
    for offset in (42, 43):
        out, _ = the(await deliver_once(context, make_record(offset=offset)))
        assert out.topic == "app.orders.retry"
    (told,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert told.message == "retryapp.predicate_failed"
    assert f"when={__name__}.{when.__name__} {problem}" in vars(told)["error_message"]


async def test_failures_in_a_row_under_a_rule_travel_with_the_record(clock: VirtualClock) -> None:
    """Another cause begins anew, and the attempts end both."""
    script = iter([TimeoutError(), TimeoutError(), OSError(), TimeoutError(), OSError()])

    async def handler(_value: bytes) -> None:
        raise next(script)

    policy = RetryPolicy("1m 2m", max_attempts=5, on=retryable(TimeoutError, schedule="1s 2s 3s"))
    context = make_context(handler, policy)
    record: Record | Due = make_record()
    steps = []
    for _ in range(4):
        turn = await deliver_once(context, record)
        _, metadata = the(turn)
        steps.append((metadata.tier, metadata.rule, metadata.rule_failures))
        clock.advance((metadata.due_at_ms or 0) - clock.wall_ms())
        record = again(context, turn)
    rule = "retryable=TimeoutError schedule=(1s 2s 3s)"
    assert steps == [("1s", rule, -1), ("2s", rule, -1), ("1m", None, 1), ("1s", rule, 1)]
    _, metadata = the(await deliver_once(context, record))
    assert (metadata.reason, metadata.attempt) == ("exhausted", 5)


# -- attempts ---------------------------------------------------------------------------------------------------------


async def test_a_record_is_delivered_max_attempts_times_and_then_dead(clock: VirtualClock) -> None:
    """No more, no fewer; what never changes is the same in every copy."""
    seen: list[Delivery] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery)
        raise BankDownError

    context = make_context(handler, "1s 10s 1m")
    record: Record | Due = make_record(headers=USER_HEADERS)
    dues = []
    for _ in range(3):
        turn = await deliver_once(context, record)
        out, metadata = the(turn)
        assert out.topic == "app.orders.retry"
        assert metadata.due_at_ms is not None
        dues.append(metadata.due_at_ms)
        clock.advance(metadata.due_at_ms - clock.wall_ms())
        record = again(context, turn)
    out, metadata = the(await deliver_once(context, record))
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


@pytest.mark.parametrize("ends", ["fails", "succeeds", "crashes", "cannot be told"])
async def test_a_delivery_counts_on_whatever_attempts_were_spent(clock: VirtualClock, ends: str) -> None:
    """Row and headers have both numbers; each outcome takes the next of both."""
    context = make_context(fine if ends == "succeeds" else failing(BankDownError()), "1s 10s 1m")
    first = await deliver_once(make_context(failing(BankDownError()), "1s 10s 1m"), make_record())
    copy, metadata = the(first)
    free = replace(metadata, delivery=5)
    row = encode_row(to_row(replace(copy, headers=encode_metadata(free)), free))
    assert (decode_row(row).attempt, decode_row(row).delivery) == (1, 5)
    claim, record = due = claimed(context, first.rows[0].identity, row)
    clock.advance(1_000)
    if ends in {"fails", "succeeds"}:
        turn = await deliver_once(context, due)
    elif ends == "crashes":
        turn = crashed(Run(Owner(), context, record, claim=claim), 3)
    else:
        turn = last_resort(Run(Owner(), context, record, claim=claim), BankDownError(), ValueError(), 7)
    told = decode_event(turn.publishes[0].value or b"") if ends == "succeeds" else the(turn)[1]
    assert (getattr(told, "attempt", 0), getattr(told, "delivery", 0)) == (2, 6)
    if ends == "fails":
        assert decode_row(turn.rows[0].value or b"").delivery == 6


@pytest.mark.parametrize("batch", [None, Batch(4)])
@pytest.mark.parametrize(("marks", "raises"), [(False, True), (True, False), (True, True)])
async def test_a_failure_that_is_told_of_is_gone(batch: Batch | None, marks: bool, raises: bool) -> None:
    """With its traceback and all frames: left to the garbage collector, they cost a storm of failures a tenth more."""
    seen: list[weakref.ref[BankDownError]] = []

    def noted() -> BankDownError:
        error = BankDownError("no answer")
        seen.append(weakref.ref(error))
        return error

    async def handler(_value: object, given: Delivery | list[Delivery]) -> None:
        for delivery in given if isinstance(given, list) else [given]:
            if marks:
                delivery.fail(noted())
        if raises:
            raise noted()

    async with MemoryPartition(handler, "1h", batch=batch) as orders:
        gc.disable()
        try:
            await orders.send(b"a", b"b")
            await orders.advance(50)
            assert orders.waiting == {"1h": 2}
            assert [reference() for reference in seen] == [None] * len(seen) != []
        finally:
            gc.enable()


async def test_messages_are_freed_of_what_is_masked() -> None:
    """In letters, on the retry topic, in events and for logs, also in the traceback and of another error's cause."""

    async def charge(value: bytes, delivery: Delivery) -> None:
        cause = KeyError(f"token {dict(delivery.headers)['X-Token']!r}")
        raise ValueError(f"card {json.loads(value)['card']} was refused") from cause

    mask = parse_mask("x-token, /card")
    async with MemoryPartition(charge, "1s", mask=mask) as orders:
        await orders.send(b'{"card": "4111-secret"}', headers=(("X-Token", b"t-secret"),))
        await orders.to_rest()
        (letter,) = orders.dead_letters
        assert letter.error_message == "card *** was refused"
        assert "***" in (letter.error_trace or "")
        assert any(each.trace for each in orders.observer.seen)
        assert not [each for each in orders.observer.seen if "secret" in f"{each.message} {each.trace}"]


@pytest.mark.parametrize("secret", ["4111-secret-" * 40, 'se"cret\n\\é'], ids=["cut", "escaped"])
async def test_what_is_masked_is_not_left_in_parts(secret: str) -> None:
    """Where a long text is cut, and where it stands as a program writes it: escaped."""

    async def charge(value: bytes) -> None:
        card = json.loads(value)["card"]
        raise ValueError(
            f"{'x' * 200}{card} {card!r} {json.dumps(card)} {json.dumps(card, ensure_ascii=False)}{'x' * 800}{card}"
        )

    async with serving(charge, "1s", json.dumps({"card": secret}).encode(), mask=parse_mask("/card")) as (orders, _):
        await orders.to_rest()
        (letter,) = orders.dead_letters
        assert letter.error_message.startswith("x" * 200 + "***")
        assert not [each for each in ("cret", "4111") if each in f"{letter.error_message}{letter.error_trace}"]

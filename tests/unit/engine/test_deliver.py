"""One delivery becomes one turn."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from doubles import (
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
    the,
)
from pydantic import BaseModel, field_validator

from retryapp.core.classify import non_retryable
from retryapp.core.headers import encode_metadata
from retryapp.core.hops import to_row
from retryapp.core.lifecycle import decode_event
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin, Record
from retryapp.core.rows import decode_row, encode_row
from retryapp.core.verdicts import Reject
from retryapp.engine.delivery.damage import last_resort
from retryapp.engine.delivery.deliver import crashed
from retryapp.engine.delivery.run import Run
from retryapp.engine.handler.handler import Delivery
from retryapp.ports import Event, TopicPartition
from retryapp.testing import VirtualClock

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
    assert (turn.source, turn.next_offset) == (TopicPartition("orders", 0), 43)
    assert [o.event for o in turn.observations] == [Event.FAILED, Event.SCHEDULED]


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


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Reject("no such customer"), "rejected"),
        (ValueError("never"), "non-retryable"),
    ],
)
async def test_what_is_not_tried_again_goes_to_the_dead_letter_topic(error: Exception, reason: str) -> None:
    """With the reason, the traceback and no due time."""
    policy = RetryPolicy("fixed(1s, 1)", on=non_retryable(ValueError))
    context = make_context(failing(error), policy)
    turn = await deliver_once(context, make_record(headers=USER_HEADERS))
    out, metadata = the(turn)
    assert (out.topic, out.key, out.value, out.headers[:2]) == ("app.orders.dlq", b"k", b"v", USER_HEADERS)
    assert (metadata.reason, metadata.due_at_ms, metadata.error_message) == (reason, None, str(error))
    assert metadata.error_trace
    assert [(o.event, o.reason) for o in turn.observations] == [(Event.FAILED, None), (Event.DEAD, reason)]


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


async def test_a_failure_that_is_told_of_is_gone() -> None:
    """With its traceback and all frames: left to the garbage collector, they cost a storm of failures a tenth more."""
    seen: list[weakref.ref[BankDownError]] = []

    async def handler(_value: bytes) -> None:
        error = BankDownError("no answer")
        seen.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        the(await deliver_once(make_context(handler, "10s"), make_record()))
        assert [reference() for reference in seen] == [None]
    finally:
        gc.enable()

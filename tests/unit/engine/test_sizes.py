"""What does not fit is dead before it can fail a transaction: at the exact limit, at every hop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import deliver_once, failing, make_context, make_record, the

from retryapp.core.hops import Outgoing, record_size, waiting_size
from retryapp.core.record import Record
from retryapp.core.rows import decode_row
from retryapp.engine.delivery.park import park
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.firing import fire
from retryapp.ports import Event, Removal, Row

USER_HEADERS = (("trace", b"1"), ("trace", None), ("retry-attempt", b"the user's own"))
DOWN = failing(RuntimeError("no answer"))


@pytest.fixture
async def copy() -> Outgoing:
    """The copy that waits, of a record of 5,000 bytes."""
    record = make_record(b"x" * 5_000, headers=USER_HEADERS)
    return the(await deliver_once(make_context(DOWN), record))[0]


def tier_record(copy: Outgoing, offset: int = 3) -> Record:
    """Return the copy as it comes from the retry topic."""
    return Record(copy.topic, copy.partition, offset, 1_800_000_000_000, copy.key, copy.value, copy.headers)


@pytest.mark.parametrize(("room", "topic"), [(0, "app.orders.retry"), (-1, "app.orders.dlq")])
async def test_a_failure_whose_copy_does_not_fit_is_dead(copy: Outgoing, room: int, topic: str) -> None:
    """At the limit it waits; one byte more and it is dead, with the error that it failed with and its coordinates."""
    limit = waiting_size(copy) + room
    record = make_record(b"x" * 5_000, headers=USER_HEADERS)
    turn = await deliver_once(make_context(DOWN, max_bytes=limit), record)
    out, metadata = the(turn)
    assert (out.topic, turn.next_offset) == (topic, 43)
    assert record_size(out.key, out.value, out.headers) <= limit
    if room == 0:
        assert (metadata.reason, out.value) == (None, record.value)
        return
    assert (metadata.reason, metadata.original_reason) == ("too-large", None)
    assert (metadata.due_at_ms, metadata.tier) == (None, None)
    assert (metadata.attempt, metadata.error_type, metadata.error_message) == (1, "RuntimeError", "no answer")
    assert (metadata.origin.offset, out.key, len(metadata.history)) == (42, b"k", 1)
    dead = turn.observations[-1]
    assert (dead.event, dead.reason, dead.due_at_ms) == (Event.DEAD, "too-large", None)


NOW_MS = 1_900_000_000_000


def parked(context: DeliveryContext, record: Record, max_bytes: int) -> Turn:
    """Park a record."""
    return park(replace(context, max_bytes=max_bytes), record, NOW_MS)


def fired(context: DeliveryContext, row: Row, max_bytes: int) -> Turn:
    """Fire a row."""
    return fire(replace(context, max_bytes=max_bytes), [(row.key, row.value)], partition=0, now_ms=NOW_MS)


async def test_a_tier_record_whose_row_does_not_fit_is_dead(copy: Outgoing) -> None:
    """At the limit there is a row, which the changelog takes; one byte more and there is a dead letter."""
    context, record, limit = make_context(DOWN), tier_record(copy), waiting_size(copy)
    (row,) = parked(context, record, limit).puts
    assert record_size(row.key, row.value, ()) <= limit
    assert decode_row(row.value).value == b"x" * 5_000

    turn = parked(context, record, limit - 1)
    out, metadata = the(turn)
    assert (turn.puts, turn.next_offset, turn.source) == ((), 4, (record.topic, 0))
    assert (out.topic, metadata.reason, metadata.origin.offset) == ("app.orders.dlq", "too-large", 42)
    assert (metadata.attempt, metadata.error_type) == (1, "RuntimeError")
    assert [o.event for o in turn.observations] == [Event.DEAD]


async def test_a_row_that_does_not_fit_the_redelivery_topic_is_dead(copy: Outgoing) -> None:
    """A limit that was lowered while it waited; the row is gone and its count with it."""
    context = make_context(DOWN)
    limit = waiting_size(copy)
    (row,) = parked(context, tier_record(copy), limit).puts
    assert the(fired(context, row, limit))[0] == replace(copy, topic="app.orders.redelivery")

    turn = fired(context, row, limit - 1)
    out, metadata = the(turn)
    assert (out.topic, metadata.reason, metadata.origin.offset) == ("app.orders.dlq", "too-large", 42)
    assert out.headers[:2] == (("trace", b"1"), ("trace", None))
    assert turn.removes == (Removal(row.key, "1s"),)

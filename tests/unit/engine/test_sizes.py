"""What does not fit is dead before it can fail a transaction: at the exact limit, at every hop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import DLQ, again, deliver_once, failing, make_context, make_record, the

from retryapp import CircuitBreaker, Unavailable
from retryapp.core.hops import Outgoing, record_size, waiting_size
from retryapp.core.rows import decode_row
from retryapp.ports import Event, Row
from retryapp.testing import VirtualClock

USER_HEADERS = (("trace", b"1"), ("trace", None), ("retry-attempt", b"the user's own"))
DOWN = failing(RuntimeError("no answer"))


@pytest.fixture
async def copy() -> Outgoing:
    """The copy that waits, of a record of 5,000 bytes."""
    record = make_record(b"x" * 5_000, headers=USER_HEADERS)
    return the(await deliver_once(make_context(DOWN), record))[0]


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


@pytest.mark.parametrize(("room", "fits"), [(6, True), (5, False)])
async def test_a_row_that_names_a_circuit_fits_as_well(room: int, fits: bool) -> None:
    """Else the changelog refuses it, and its partition waits for somebody who raises a limit by a few bytes."""

    async def down(_value: bytes) -> None:
        raise Unavailable("ledger", "no answer")

    options: dict[str, Any] = {"circuits": {"ledger": CircuitBreaker()}}
    record = make_record(b"x" * 5_000)
    whole = the(await deliver_once(make_context(down, **options), record))[0]
    turn = await deliver_once(make_context(down, max_bytes=waiting_size(whole) + room, **options), record)
    assert (the(turn)[1].reason is None) is fits


async def test_a_row_fits_wherever_its_copy_does(copy: Outgoing, clock: VirtualClock) -> None:
    """The changelog takes it at the limit; a limit that was lowered while it waited makes the next failure its last."""
    limit = waiting_size(copy)
    context = make_context(DOWN, max_bytes=limit)
    turn = await deliver_once(context, make_record(b"x" * 5_000, headers=USER_HEADERS))
    (row,) = turn.rows
    assert row.value is not None
    assert record_size(row.identity, row.value, ()) <= limit
    assert decode_row(row.value).value == b"x" * 5_000

    clock.advance(10_000)
    lowered = replace(context, max_bytes=limit - 1)
    dead = await deliver_once(lowered, again(context, turn))
    out, metadata = the(dead)
    assert (out.topic, metadata.reason, metadata.attempt, metadata.origin.offset) == (DLQ, "too-large", 2, 42)
    assert out.headers[:2] == (("trace", b"1"), ("trace", None))
    assert dead.rows == (Row(row.identity, None, "?"),)

"""Delays without end: who may have them, what their copies carry, and where their counts end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import (
    USER_HEADERS,
    BankDownError,
    Due,
    again,
    claimed,
    deliver_once,
    failing,
    fine,
    make_context,
    make_record,
    the,
)

from retryapp.core.errors import InvalidSettingError
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.metadata import MAX_COUNT
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Record
from retryapp.core.rows import decode_row, encode_row
from retryapp.engine.handler.handler import Order
from retryapp.testing import VirtualClock


@pytest.mark.parametrize("value", [b"v", b"", None])
async def test_without_end_only_the_first_copy_has_the_payload(clock: VirtualClock, value: bytes | None) -> None:
    """The row has it at each attempt, and so has the dead letter."""
    policy = RetryPolicy("forever(10s)", max_elapsed="25s")
    context = make_context(failing(BankDownError()), policy, order=Order.KEY)
    record: Record | Due = make_record(value, headers=USER_HEADERS)
    copies, rows = [], []
    for _ in range(3):
        turn = await deliver_once(context, record)
        copies.append(the(turn)[0])
        rows.append(decode_row(turn.rows[0].value or b"") if turn.rows[0].value else None)
        if rows[-1] is not None:
            clock.advance(10_000)
            record = again(context, turn)
    letter = copies.pop()
    assert (letter.topic, letter.value, letter.headers[:2]) == ("app.orders.dlq", value or b"", USER_HEADERS)
    assert [(copy.key, copy.value) for copy in copies] == [(b"k", value or b""), (b"k", b"")]
    assert [copy.headers[:2] == USER_HEADERS for copy in copies] == [True, False]
    told = [decode_metadata(copy.headers) for copy in copies]
    assert [each and (each.no_payload, each.attempt, each.null_value) for each in told] == [
        (False, 1, value is None), (True, 2, value is None)
    ]  # fmt: skip
    assert [row and (row.value, row.headers[:2]) for row in rows] == [(value or b"", USER_HEADERS)] * 2 + [None]
    waits = [decode_metadata(row.headers) for row in rows if row is not None]
    assert [each and each.no_payload for each in waits] == [False, False]


async def test_counts_that_have_no_end_stay_at_the_largest_number(clock: VirtualClock) -> None:
    """A record that has failed more often than a header can say is tried again as before."""
    context = make_context(failing(BankDownError()), "forever(1s)", order=Order.KEY)
    turn = await deliver_once(context, make_record())
    row = decode_row(turn.rows[0].value or b"")
    metadata = decode_metadata(row.headers)
    assert metadata is not None
    many = replace(metadata, attempt=MAX_COUNT, delivery=MAX_COUNT)
    worn = replace(row, headers=encode_metadata(many), attempt=MAX_COUNT, delivery=MAX_COUNT)
    clock.advance(1_000)
    turn = await deliver_once(context, claimed(context, turn.rows[0].identity, encode_row(worn)))
    _, metadata = the(turn)
    assert (metadata.attempt, metadata.delivery, metadata.reason) == (MAX_COUNT, MAX_COUNT, None)
    assert decode_row(turn.rows[0].value or b"").attempt == MAX_COUNT


@pytest.mark.parametrize("order", [Order.NONE, Order.LATEST])
def test_a_schedule_without_end_is_for_handlers_in_which_others_wait(order: Order) -> None:
    """Elsewhere one record after another would be tried without end."""
    with pytest.raises(InvalidSettingError, match="order='key' or order='partition'"):
        make_context(fine, "forever(10s)", order=order)
    assert make_context(fine, "forever(10s)", order=Order.PARTITION).handler.policy.max_attempts is None

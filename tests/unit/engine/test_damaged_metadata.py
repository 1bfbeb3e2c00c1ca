"""Metadata that cannot be believed: dead, never a counter set back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deliver_once import deliver_once
from doubles import USER_HEADERS, BankDownError, again, failing, make_record, make_station, the

from retryapp.core.headers import encode_metadata
from retryapp.core.names import RETRY_ATTEMPT, RETRY_DUE_MS
from retryapp.core.verdicts import Reject
from retryapp.engine.handler import Delivery
from retryapp.testing import VirtualClock


@pytest.mark.parametrize(
    ("name", "value", "attempt"),
    [(RETRY_ATTEMPT, b"many", 2), (RETRY_DUE_MS, b"soon", 2), (RETRY_DUE_MS, None, 2)],
)
async def test_damaged_metadata_means_dead_and_never_a_counter_set_back(
    clock: VirtualClock, name: str, value: bytes | None, attempt: int
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


async def test_a_redelivery_without_any_metadata_is_damaged_and_not_a_first_delivery() -> None:
    """Somebody else wrote to our topic."""
    calls: list[object] = []

    async def handler(given: bytes) -> None:
        calls.append(given)

    stray = replace(make_record(), topic="app.orders.redelivery")
    dead, metadata = the(await deliver_once(make_station(handler), stray))
    assert (dead.topic, metadata.reason, calls) == ("app.orders.dlq", "damaged", [])


async def test_a_dead_letter_copied_to_the_main_topic_is_a_new_record() -> None:
    """Our headers on it are neither believed nor shown."""
    _, dead = the(await deliver_once(make_station(failing(Reject())), make_record()))
    seen: list[Delivery] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery)

    await deliver_once(make_station(handler), make_record(offset=99, headers=encode_metadata(dead)))
    assert (seen[0].attempt, seen[0].origin.offset, seen[0].headers) == (1, 99, ())

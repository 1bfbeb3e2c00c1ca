"""The last resort: a failure that cannot be told is a dead letter all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import make_record, make_station

from retryapp.core.headers import decode_metadata
from retryapp.core.hops import Outgoing, record_size
from retryapp.core.record import Headers, Record
from retryapp.engine import damage
from retryapp.engine.damage import last_resort
from retryapp.engine.run import Station
from retryapp.engine.turn import Turn
from retryapp.ports import Event, TopicPartition
from retryapp.testing import MemoryPartition


class OddError(Exception):
    """An error that cannot be looked at."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no text")


async def down(_value: bytes) -> None:
    """Fail."""
    raise RuntimeError("down")


def buried(station: Station, record: Record, max_bytes: int = 100_000) -> Turn:
    """Return the turn of a record whose failure could not be told."""
    return last_resort(replace(station, max_bytes=max_bytes), record, OddError(), OddError(), -1)


async def test_a_new_record_keeps_its_bytes_and_coordinates() -> None:
    """Its headers are the user's, whatever they are called; observers hear of it."""
    headers: Headers = (("retry-attempt", b"7"), ("\udcff", b"z"))
    turn = buried(make_station(down), make_record(headers=headers))
    (letter,) = turn.publishes
    assert (letter.topic, letter.partition, letter.key, letter.value) == ("app.orders.dlq", 0, b"k", b"v")
    assert letter.headers[:2] == (("retry-foreign-retry-attempt", b"7"), ("retry-escaped-%FF", b"z"))
    said = decode_metadata(letter.headers)
    assert said is not None
    assert (said.reason, said.attempt, said.origin.text) == ("damaged", 1, "orders@kq8G0bTz/0/42")
    assert (said.error_type, said.error_message) == ("OddError", "its failure could not be told: OddError: ?")
    assert (turn.source, turn.next_offset) == (TopicPartition("orders", 0), 43)
    assert [o.event for o in turn.observations] == [Event.DAMAGED, Event.DEAD]


async def test_a_redelivered_record_keeps_its_origin_and_attempt() -> None:
    """As far as its headers can be read."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"v")
        (waiting,) = orders.records("app.orders.retry")
    record = Record("app.orders.redelivery", 0, 5, 6, b"k", b"", (*waiting.headers, ("retry-handler", b"twice")))
    (letter,) = buried(make_station(down), record).publishes
    said = decode_metadata(letter.headers)
    assert said is not None
    assert (said.attempt, said.origin.topic, said.origin.offset) == (2, "orders", 0)


async def test_if_even_the_record_cannot_be_carried_its_coordinates_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large, or something in it that nobody thought of."""
    station = make_station(down)
    (small,) = buried(station, make_record(b"x" * 100_000), max_bytes=2_000).publishes
    assert small.value == b""
    assert record_size(small.key, small.value, small.headers) <= 2_000

    real = damage.to_dead_letter

    def fails_on_a_value(record: Record, **options: object) -> tuple[Outgoing, object]:
        if record.value is not None:
            raise TypeError("nobody thought of this")
        return real(record, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(damage, "to_dead_letter", fails_on_a_value)
    (bare,) = buried(station, make_record()).publishes
    said = decode_metadata(bare.headers)
    assert (bare.key, bare.value) == (None, b"")
    assert said is not None
    assert said.origin.text == "orders@kq8G0bTz/0/42"

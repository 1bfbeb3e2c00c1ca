"""Offsets that could not be read: one dead letter for the range, and what is behind goes on."""

from __future__ import annotations

import pytest
from deliver_once import deliver_once
from doubles import make_station

from retryapp.core.classify import DeadReason
from retryapp.core.headers import decode_metadata
from retryapp.core.hops import Outgoing
from retryapp.core.record import Damage, Record
from retryapp.engine.park import park
from retryapp.engine.run import Station
from retryapp.engine.turn import Turn


@pytest.fixture
async def station() -> Station:
    """Its handler must never run."""

    async def never(_value: bytes) -> None:
        raise AssertionError("nothing could be given to it")

    return make_station(never)


DAMAGE = Damage(last_offset=8, problem="the checksum of the batch is wrong")


def assert_buried(turn: Turn, topic: str) -> Outgoing:
    """Check the one dead letter, and that the whole range is behind it."""
    (letter,) = turn.publishes
    assert turn.source is not None
    assert (turn.source.topic, turn.next_offset) == (topic, 9)
    assert not turn.puts
    metadata = decode_metadata(letter.headers)
    assert metadata is not None
    assert metadata.reason == DeadReason.DAMAGED.value
    assert (metadata.origin.topic, metadata.origin.offset) == (topic, 6)
    assert "offsets 6 to 8" in metadata.error_message
    assert "checksum" in metadata.error_message
    assert not metadata.null_value, "a copy of it on a compacted topic would be a tombstone"
    assert (letter.key, letter.value) == (None, b"")
    return letter


@pytest.mark.parametrize("which", ["main", "redelivery"])
async def test_a_damaged_batch_before_the_handler(station: Station, which: str) -> None:
    """The handler is not called; nothing could be given to it."""
    topic = getattr(station.handler.topology, which)
    turn = await deliver_once(station, Record(topic, 0, 6, -1, None, b"", (), DAMAGE))
    assert assert_buried(turn, topic).topic == station.handler.topology.dlq


async def test_a_damaged_batch_on_the_way_to_the_table(station: Station) -> None:
    """What waited in it is named by where it lay; no row is made."""
    (topic,) = station.handler.topology.retry_topics
    record = Record(topic, 0, 6, -1, None, b"", (), DAMAGE)
    assert_buried(park(station, record, 1_000), topic)

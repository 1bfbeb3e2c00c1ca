"""What observers hear of records that somebody has spoilt: a warning, and that they are dead, once each."""

from __future__ import annotations

import pytest

from retryapp.core.record import Record
from retryapp.core.rows import row_key
from retryapp.ports import Event, LaneBatch, Observation, Row, TopicPartition
from retryapp.testing import MemoryPartition

SPOILT = (("retry-version", b"1"), ("retry-attempt", b"many"))


async def down(_value: bytes) -> None:
    """Fail."""
    raise RuntimeError("down")


def told(partition: MemoryPartition) -> list[tuple[Event, str | None, int | None, str | None]]:
    """Return what was said of damage and death."""
    seen: list[Observation] = [o for o in partition.observer.seen if o.event in {Event.DAMAGED, Event.DEAD}]
    assert all(o.error_type and o.message and o.failure_id for o in seen)
    return [(o.event, o.topic, o.offset, o.reason) for o in seen]


async def test_damaged_records_of_our_topics_are_told() -> None:
    """On the way to the table and on the way to the handler."""
    async with MemoryPartition(down, "1s") as partition:
        for topic in ("app.orders.retry", "app.orders.redelivery"):
            partition.transport.append(TopicPartition(topic, 0), b"k", b"v", SPOILT)
            await partition.settle()
            assert told(partition)[-2:] == [(Event.DAMAGED, topic, 0, None), (Event.DEAD, topic, 0, "damaged")]
        assert len(told(partition)) == 4


async def test_a_damaged_row_is_told() -> None:
    """It is found when it is due; the others of its firing are not held up."""
    async with MemoryPartition(down, "1s") as partition:
        key = row_key(partition.clock.wall_ms(), 0, 7)
        await partition.transport.commit(LaneBatch(puts=[Row(key, b"no row", "1s")]))
        table = partition.transport.pending
        assert table is not None
        table.write([Row(key, b"no row", "1s")], [], None)
        partition.engine.firing.wake.set()
        await partition.settle()
        changelog = "app.orders.pending.changelog"
        assert told(partition) == [(Event.DAMAGED, changelog, 7, None), (Event.DEAD, changelog, 7, "damaged")]
        assert not partition.waiting


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -5, 2**63 - 1])
async def test_a_record_with_an_impossible_timestamp_goes_round(timestamp_ms: int) -> None:
    """Kafka takes any; and its error has no name. It does not hold up the partition."""
    error = type("", (Exception,), {"__module__": "builtins"})

    async def nameless(_value: bytes) -> None:
        raise error

    async with MemoryPartition(nameless, "1s") as partition:
        partition.engine.accept(
            TopicPartition("orders", 0),
            partition.lane.session,
            [Record("orders", 0, 0, timestamp_ms, b"k", b"v", (("\udcff", b"z"),))],
        )
        await partition.settle()
        assert partition.waiting == {"1s": 1}
        await partition.advance(1_000)
        (letter,) = partition.records("app.orders.dlq")
        headers = dict(letter.headers)
        assert (headers["retry-error-type"], headers["retry-reason"]) == (b"?", b"exhausted")
        assert partition.lane.last_error is None


async def test_a_failure_that_ends_is_no_damage() -> None:
    """Only what cannot be read as written is."""
    async with MemoryPartition(down, "1s") as partition:
        await partition.send(b"x")
        await partition.advance(1_000)
        assert [event for event, *_ in told(partition)] == [Event.DEAD]

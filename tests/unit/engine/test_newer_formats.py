"""A worker that was rolled back: what a newer one wrote stops the partition by name, and nothing of it is lost."""

from __future__ import annotations

import pytest

from retryapp.core.errors import NewerRecordError
from retryapp.core.names import RETRY_ATTEMPT, RETRY_VERSION
from retryapp.core.record import Headers, Record
from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.engine.firing import fire
from retryapp.engine.park import park, waiting_metadata
from retryapp.engine.turn import Turn
from retryapp.ports import Event, LaneBatch, Row, TopicPartition
from retryapp.testing import MemoryPartition

RETRY, REDELIVERY, DLQ = "app.orders.retry", "app.orders.redelivery", "app.orders.dlq"


async def down(_value: bytes) -> None:
    """Fail."""
    raise RuntimeError("down")


def said(record: Record, name: str, value: bytes) -> Headers:
    """Return a record's headers, one of them changed."""
    return tuple((each, value if each == name else kept) for each, kept in record.headers)


@pytest.fixture
async def waiting() -> Record:
    """A record on the retry topic."""
    async with MemoryPartition(down, "1s 1h") as orders:
        await orders.send(b"v", key=b"user-key")
        (record,) = orders.records(RETRY)
    return record


def fired(orders: MemoryPartition, row: bytes) -> Turn:
    """Fire one row of origin offset 7."""
    rows = [(row_key(1, 0, 7), row)]
    return fire(orders.engine.station, rows, partition=0, now_ms=10**12)


@pytest.mark.parametrize("topic", [RETRY, REDELIVERY])
async def test_a_record_of_a_newer_format_stops_its_partition(waiting: Record, topic: str) -> None:
    """The lane fails and says what to do; no offset moves, no dead letter is written."""
    async with MemoryPartition(down, "1s 1h") as orders:
        tp = TopicPartition(topic, 0)
        orders.transport.append(tp, b"k", b"v", said(waiting, RETRY_VERSION, b"2"))
        await orders.settle()
        failures = [o.message or "" for o in orders.observer.seen if o.event is Event.LANE_FAILED]
        assert failures
        assert all(f"{topic}[0]@0" in text and "upgrade this worker" in text for text in failures)
        assert orders.records(DLQ) == []
        assert orders.transport.offsets.get(tp, 0) == 0
        assert orders.waiting == {}


async def test_a_row_of_a_newer_format_stays_where_it_is(waiting: Record) -> None:
    """Its headers, or its layout; the partition says so instead of firing."""
    async with MemoryPartition(down, "1s 1h") as orders:
        metadata = encode_row(PendingRow(b"k", b"v", said(waiting, RETRY_VERSION, b"2"), 1))
        layout = b"\x02" + encode_row(PendingRow(b"k", b"v", waiting.headers, 1))[1:]
        for row, finding in ((metadata, "retry-version is 2"), (layout, "layout is version 2")):
            with pytest.raises(NewerRecordError, match=finding) as caught:
                fired(orders, row)
            assert "orders[0]@7 in the pending table" in str(caught.value)
        key = row_key(orders.clock.wall_ms(), 0, 7)
        await orders.transport.commit(LaneBatch(puts=[Row(key, metadata, "1s")]))
        table = orders.transport.pending
        assert table is not None
        table.write([Row(key, metadata, "1s")], [], None)
        orders.engine.firing.wake.set()
        await orders.settle()
        assert any(o.event is Event.LANE_FAILED and "upgrade" in (o.message or "") for o in orders.observer.seen)
        assert table.get(key) == metadata
        assert (orders.records(DLQ), orders.records(REDELIVERY)) == ([], [])


async def test_only_what_waiting_needs_is_read_when_a_record_is_parked(waiting: Record) -> None:
    """Damage of a header that only explains is found before delivery; of one that decides, at once."""
    async with MemoryPartition(down, "1s 1h") as orders:
        for name, parked in (("retry-fingerprint", True), (RETRY_ATTEMPT, False)):
            record = Record(RETRY, 0, 3, 4, b"k", b"v", said(waiting, name, b"%"))
            turn = park(orders.engine.station, record, 1)
            assert bool(turn.puts) is parked
            assert bool(turn.publishes) is not parked
        with pytest.raises(NewerRecordError):
            waiting_metadata(Record(REDELIVERY, 0, 3, 4, b"k", b"v", said(waiting, RETRY_VERSION, b"7")))


async def test_a_damaged_row_is_buried_with_its_own_bytes(waiting: Record) -> None:
    """Key, value and the user's headers as they were parked; what is no row at all is kept as it is."""
    async with MemoryPartition(down, "1s 1h") as orders:
        headers = (("trace", b"t"), *said(waiting, RETRY_ATTEMPT, b"many"))
        turn = fired(orders, encode_row(PendingRow(b"user-key", b"v", headers, 1)))
        (letter,) = turn.publishes
        assert (letter.topic, letter.key, letter.value, letter.headers[0]) == (DLQ, b"user-key", b"v", ("trace", b"t"))
        assert dict(letter.headers)["retry-origin"] == dict(waiting.headers)["retry-origin"]
        assert [removal.key for removal in turn.removes] == [row_key(1, 0, 7)]
        (letter,) = fired(orders, b"\xffno row of any version").publishes
        assert (letter.topic, letter.value) == (DLQ, b"\xffno row of any version")
        assert dict(letter.headers)["retry-reason"] == b"damaged"

"""Records that cannot go on their way: damaged, of a newer format, or with a failure that cannot be written down."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import DLQ, USER_HEADERS, BankDownError, again, deliver_once, down, failing, make_context, make_record, the

from retryapp.core.classify import DeadReason
from retryapp.core.errors import NewerRecordError
from retryapp.core.headers import RETRY_ATTEMPT, RETRY_DUE_MS, RETRY_VERSION, encode_metadata
from retryapp.core.hops import Outgoing, record_size
from retryapp.core.record import Damage, Headers, Record
from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.core.verdicts import Reject
from retryapp.engine.delivery import damage
from retryapp.engine.delivery.damage import last_resort
from retryapp.engine.delivery.park import park, waiting_metadata
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.firing import fire
from retryapp.ports import Event, LaneBatch, Observation, Row, TopicPartition
from retryapp.testing import MemoryPartition, VirtualClock

RETRY, REDELIVERY = "app.orders.retry", "app.orders.redelivery"
SPOILT = (("retry-version", b"1"), ("retry-attempt", b"many"))


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


@pytest.mark.parametrize(("name", "value"), [(RETRY_ATTEMPT, b"many"), (RETRY_DUE_MS, b"soon"), (RETRY_DUE_MS, None)])
async def test_damaged_metadata_means_dead_and_never_a_counter_set_back(
    clock: VirtualClock, context: DeliveryContext, name: str, value: bytes | None
) -> None:
    """The handler is not asked; what can be read is kept; the attempt is that of the history if its header is not."""
    fails = make_context(failing(BankDownError()), "1s 10s 1m")
    record = make_record(headers=USER_HEADERS)
    for _ in range(2):
        out, metadata = the(await deliver_once(fails, record))
        clock.advance(60_000)
        record = again(out)
    headers = tuple((n, value if n == name else v) for n, v in record.headers if (n, value) != (name, None))
    turn = await deliver_once(context, replace(record, headers=headers))
    dead, metadata = the(turn)
    assert (dead.topic, dead.key, dead.value, dead.headers[:2]) == (DLQ, b"k", b"v", USER_HEADERS)
    assert (metadata.reason, metadata.attempt, metadata.origin.offset) == ("damaged", 2, 42)
    assert name in metadata.error_message
    assert turn.next_offset == record.offset + 1


async def test_a_redelivery_without_any_metadata_is_damaged_and_not_a_first_delivery(context: DeliveryContext) -> None:
    """Somebody else wrote to our topic."""
    stray = replace(make_record(), topic="app.orders.redelivery")
    dead, metadata = the(await deliver_once(context, stray))
    assert (dead.topic, metadata.reason) == ("app.orders.dlq", "damaged")


async def test_a_dead_letter_copied_to_the_main_topic_is_a_new_record() -> None:
    """Our headers on it are neither believed nor shown."""
    _, dead = the(await deliver_once(make_context(failing(Reject())), make_record()))
    seen: list[Delivery] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery)

    await deliver_once(make_context(handler), make_record(offset=99, headers=encode_metadata(dead)))
    assert (seen[0].attempt, seen[0].origin.offset, seen[0].headers) == (1, 99, ())


@pytest.fixture
async def context() -> DeliveryContext:
    """Its handler must never run."""

    async def never(_value: bytes) -> None:
        raise AssertionError("nothing could be given to it")

    return make_context(never)


DAMAGE = Damage(last_offset=8, problem="the checksum of the batch is wrong")


@pytest.mark.parametrize("topic", ["orders", RETRY, REDELIVERY])
async def test_a_damaged_batch_is_one_dead_letter(context: DeliveryContext, topic: str) -> None:
    """The handler is not called, no row is made, and the whole range is behind it."""
    record = Record(topic, 0, 6, -1, None, b"", (), DAMAGE)
    turn = park(context, record, 1_000) if topic == RETRY else await deliver_once(context, record)
    (letter,) = turn.publishes
    assert turn.source is not None
    assert (turn.source.topic, turn.next_offset) == (topic, 9)
    assert not turn.puts
    _, metadata = the(turn)
    assert metadata.reason == DeadReason.DAMAGED.value
    assert (metadata.origin.topic, metadata.origin.offset) == (topic, 6)
    assert "offsets 6 to 8" in metadata.error_message
    assert "checksum" in metadata.error_message
    assert not metadata.null_value, "a copy of it on a compacted topic would be a tombstone"
    assert (letter.topic, letter.key, letter.value) == (DLQ, None, b"")


class OddError(Exception):
    """An error that cannot be looked at."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no text")


def buried(context: DeliveryContext, record: Record, max_bytes: int = 100_000) -> Turn:
    """Return the turn of a record whose failure could not be told."""
    return last_resort(replace(context, max_bytes=max_bytes), record, OddError(), OddError(), -1)


async def test_a_new_record_keeps_its_bytes_and_coordinates() -> None:
    """Its headers are the user's, whatever they are called; observers hear of it."""
    headers: Headers = (("retry-attempt", b"7"), ("\udcff", b"z"))
    turn = buried(make_context(down), make_record(headers=headers))
    letter, said = the(turn)
    assert (letter.topic, letter.partition, letter.key, letter.value) == ("app.orders.dlq", 0, b"k", b"v")
    assert letter.headers[:2] == (("retry-foreign-retry-attempt", b"7"), ("retry-escaped-%FF", b"z"))
    assert (said.reason, said.attempt, said.origin.text) == ("damaged", 1, "orders@kq8G0bTz/0/42")
    assert (said.error_type, said.error_message) == ("OddError", "its failure could not be encoded: OddError: ?")
    assert (turn.source, turn.next_offset) == (TopicPartition("orders", 0), 43)
    assert [o.event for o in turn.observations] == [Event.DAMAGED, Event.DEAD]


async def test_a_redelivered_record_keeps_its_origin_and_attempt() -> None:
    """As far as its headers can be read."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"v")
        (waiting,) = orders.records("app.orders.retry")
    record = Record("app.orders.redelivery", 0, 5, 6, b"k", b"", (*waiting.headers, ("retry-handler", b"twice")))
    _, said = the(buried(make_context(down), record))
    assert (said.attempt, said.origin.topic, said.origin.offset) == (2, "orders", 0)


async def test_if_even_the_record_cannot_be_carried_its_coordinates_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large, or something in it that nobody thought of."""
    context = make_context(down)
    (small,) = buried(context, make_record(b"x" * 100_000), max_bytes=2_000).publishes
    assert small.value == b""
    assert record_size(small.key, small.value, small.headers) <= 2_000

    real = damage.to_dead_letter

    def fails_on_a_value(record: Record, **options: object) -> tuple[Outgoing, object]:
        if record.value is not None:
            raise TypeError("nobody thought of this")
        return real(record, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(damage, "to_dead_letter", fails_on_a_value)
    bare, said = the(buried(context, make_record()))
    assert (bare.key, bare.value) == (None, b"")
    assert said.origin.text == "orders@kq8G0bTz/0/42"


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
    return fire(orders.engine.context, rows, partition=0, now_ms=10**12)


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
            turn = park(orders.engine.context, record, 1)
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

"""Records that cannot go on their way: damaged, of a newer format, or with a failure that cannot be written down."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import (
    DLQ,
    MAIN,
    USER_HEADERS,
    BankDownError,
    Due,
    Owner,
    again,
    claimed,
    deliver_once,
    down,
    failing,
    failures,
    make_context,
    make_record,
    pass_time,
    serving,
    the,
)

from retryapp.core.classify import DeadReason
from retryapp.core.headers import RETRY_ATTEMPT, RETRY_DUE_MS, RETRY_VERSION
from retryapp.core.hops import Outgoing, record_size
from retryapp.core.record import Damage, Headers, Origin, Record
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.engine.delivery import damage
from retryapp.engine.delivery.damage import last_resort
from retryapp.engine.delivery.run import Claim, DeliveryContext, Run
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Event, Row
from retryapp.testing import MemoryPartition, VirtualClock

RETRY = "app.orders.retry"
SPOILT = (("retry-version", b"1"), ("retry-attempt", b"many"))


IDENTITY = identity_of(Origin("orders", "kq8G0bTz", 0, 7))


async def test_damaged_rows_are_told() -> None:
    """Rows of which nothing can be read, and rows with damaged headers: dead, and told as damaged."""
    async with MemoryPartition(down, "1s") as partition:
        for row in (b"\xffno row", encode_row(PendingRow(b"k", b"v", SPOILT, due_at_ms=1))):
            await put(partition, row)
            told = [o for o in partition.observer.seen if o.event in {Event.DAMAGED, Event.DEAD}][-2:]
            assert [(o.event, o.reason) for o in told] == [(Event.DAMAGED, None), (Event.DEAD, "damaged")]
            assert all(o.error_type and o.message and o.failure_id == "app/orders@kq8G0bTz/0/7" for o in told)
        assert (partition.waiting, len(partition.dead_letters)) == ({}, 2)


COUNTED = PendingRow(b"k", b"v", (), due_at_ms=1, attempt=3, delivery=5)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        pytest.param(encode_row(replace(COUNTED, headers=SPOILT)), (3, 5), id="headers"),
        pytest.param(encode_row(COUNTED)[:-1], (3, 5), id="end"),
        pytest.param(encode_row(replace(COUNTED, attempt=6))[:-1], (1, 1), id="impossible"),
        pytest.param(encode_row(replace(COUNTED, delivery=1 << 31))[:-1], (1, 1), id="too large"),
        pytest.param(encode_row(replace(COUNTED, headers=SPOILT, delivery=1 << 31)), (1, 1), id="too large, headers"),
        pytest.param(b"\xff" + encode_row(COUNTED)[1:], (1, 1), id="version"),
        pytest.param(encode_row(COUNTED)[:40], (1, 1), id="cut off"),
    ],
)
async def test_the_letter_of_a_damaged_row_has_the_numbers_of_the_row(row: bytes, told: tuple[int, int]) -> None:
    """Where its headers do not say them; impossible ones, and those of an unknown layout, are not believed."""
    async with MemoryPartition(down, "1s") as partition:
        await put(partition, row)
        (letter,) = partition.dead_letters
        assert (letter.attempt, letter.delivery, letter.reason) == (*told, "damaged")


async def put(partition: MemoryPartition, row: bytes) -> None:
    """Put a row into changelog and table, as a turn does."""
    partition.lane.submit(partition.lane.session, Turn(rows=(Row(IDENTITY, row, "1s"),)))
    await partition.settle()


@pytest.mark.parametrize(("name", "value"), [(RETRY_ATTEMPT, b"many"), (RETRY_DUE_MS, b"soon"), (RETRY_DUE_MS, None)])
async def test_damaged_metadata_means_dead_and_never_a_counter_set_back(
    clock: VirtualClock, context: DeliveryContext, name: str, value: bytes | None
) -> None:
    """The handler is not asked; what can be read is kept; the attempt is that of the history if its header is not."""
    fails = make_context(failing(BankDownError()), "1s 10s 1m")
    record: Record | Due = make_record(headers=USER_HEADERS)
    for _ in range(2):
        turn = await deliver_once(fails, record)
        clock.advance(60_000)
        record = again(fails, turn)
    assert isinstance(record, tuple)
    claim, row = record
    headers = tuple((n, value if n == name else v) for n, v in row.headers if (n, value) != (name, None))
    turn = await deliver_once(context, (claim, replace(row, headers=headers)))
    dead, metadata = the(turn)
    assert (dead.topic, dead.key, dead.value, dead.headers[:2]) == (DLQ, b"k", b"v", USER_HEADERS)
    assert (metadata.reason, metadata.attempt, metadata.origin.offset) == ("damaged", 2, 42)
    assert name in metadata.error_message
    assert (turn.source, turn.rows) == (None, (Row(claim.identity, None, "?"),))


@pytest.fixture
async def context() -> DeliveryContext:
    """Its handler must never run."""

    async def never(_value: bytes) -> None:
        raise AssertionError("nothing could be given to it")

    return make_context(never)


DAMAGE = Damage(last_offset=8, problem="the checksum of the batch is wrong")


async def test_a_damaged_batch_is_one_dead_letter(context: DeliveryContext) -> None:
    """The handler is not called, no row is made, and the whole range is behind it."""
    turn = await deliver_once(context, Record("orders", 0, 6, -1, None, b"", (), DAMAGE))
    (letter,) = turn.publishes
    assert (turn.source, turn.next_offset, turn.rows) == (("orders", 0), 9, ())
    _, metadata = the(turn)
    assert metadata.reason == DeadReason.DAMAGED.value
    assert (metadata.origin.topic, metadata.origin.offset) == ("orders", 6)
    assert "offsets 6 to 8" in metadata.error_message
    assert "checksum" in metadata.error_message
    assert not metadata.null_value, "a copy of it on a compacted topic would be a tombstone"
    assert (letter.topic, letter.key, letter.value) == (DLQ, None, b"")


class OddError(Exception):
    """An error that cannot be looked at."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def buried(context: DeliveryContext, record: Record, max_bytes: int = 100_000, claim: Claim | None = None) -> Turn:
    """Return the turn of a record whose failure could not be told."""
    run = Run(Owner(), replace(context, max_bytes=max_bytes), record, claim=claim)
    return last_resort(run, OddError(), OddError(), -1)


async def test_a_new_record_keeps_its_bytes_and_coordinates() -> None:
    """Its headers are the user's, whatever they are called; observers hear of it."""
    headers: Headers = (("retry-attempt", b"7"), ("\udcff", b"z"))
    turn = buried(make_context(down), make_record(headers=headers))
    letter, said = the(turn)
    assert (letter.topic, letter.partition, letter.key, letter.value) == ("app.orders.dlq", 0, b"k", b"v")
    assert letter.headers[:2] == (("retry-foreign-retry-attempt", b"7"), ("retry-escaped-%FF", b"z"))
    assert (said.reason, said.attempt, said.origin.text) == ("damaged", 1, "orders@kq8G0bTz/0/42")
    assert (said.error_type, said.error_message) == ("OddError", "its failure could not be encoded: OddError: ?")
    assert (turn.source, turn.next_offset) == (MAIN, 43)
    assert [o.event for o in turn.observations] == [Event.DAMAGED, Event.DEAD]


async def test_a_row_keeps_its_origin_and_attempt() -> None:
    """As far as its headers can be read."""
    context = make_context(failing(BankDownError()))
    claim, row = again(context, await deliver_once(context, make_record()))
    spoilt = replace(row, headers=(*row.headers, ("retry-handler", b"twice")))
    turn = buried(context, spoilt, claim=claim)
    _, said = the(turn)
    assert (said.attempt, said.origin.topic, said.origin.offset) == (2, "orders", 42)
    assert (turn.source, turn.rows) == (None, (Row(claim.identity, None, "?"),))


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
    async with serving(down, "1s 1h", b"v", key=b"user-key") as (orders, _):
        (record,) = orders.records(RETRY)
    return record


@pytest.mark.parametrize("what", ["headers", "layout", "state"])
async def test_a_row_of_a_newer_format_stays_where_it_is(waiting: Record, what: str) -> None:
    """The lane fails and says what to do; nothing is delivered, and no dead letter is written."""
    headers = said(waiting, RETRY_VERSION, b"2") if what == "headers" else waiting.headers
    row = encode_row(PendingRow(b"k", b"v", headers, due_at_ms=1))
    changed = {"headers": row, "layout": b"\x03" + row[1:], "state": row[:1] + b"\x01" + row[2:]}[what]
    async with MemoryPartition(down, "1s 1h") as orders:
        await put(orders, changed)
        await pass_time(orders, 5_000, 1_000)
        assert failures(orders)
        assert all("[0]@7" in text and "upgrade" in text for text in failures(orders))
        (kept,) = [r.value for r in orders.records("app.orders.pending.changelog") if r.key == IDENTITY]
        assert (kept, orders.records(DLQ)) == (changed, [])


async def test_a_damaged_row_is_buried_with_its_own_bytes(waiting: Record, context: DeliveryContext) -> None:
    """Key, value and the user's headers as they waited; what is no row at all is kept as it is."""
    headers = (("trace", b"t"), *said(waiting, RETRY_ATTEMPT, b"many"))
    row = encode_row(PendingRow(b"user-key", b"v", headers, due_at_ms=1))
    turn = await deliver_once(context, claimed(context, IDENTITY, row))
    (letter,) = turn.publishes
    assert (letter.topic, letter.key, letter.value, letter.headers[0]) == (DLQ, b"user-key", b"v", ("trace", b"t"))
    assert dict(letter.headers)["retry-origin"] == dict(waiting.headers)["retry-origin"]
    assert turn.rows == (Row(IDENTITY, None, "?"),)
    (letter,) = (await deliver_once(context, claimed(context, IDENTITY, b"\xffno row of any version"))).publishes
    assert (letter.topic, letter.value) == (DLQ, b"\xffno row of any version")
    assert dict(letter.headers)["retry-reason"] == b"damaged"

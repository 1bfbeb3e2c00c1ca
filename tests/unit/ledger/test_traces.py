"""What records of our topics, rows and events tell of a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import WAITING, dead, waiting

from retryapp.core.errors import DamagedEventError, UnreadableRecordsError
from retryapp.core.headers import RETRY_ATTEMPT, RETRY_DELIVERY, RETRY_ORIGIN, encode_metadata
from retryapp.core.lifecycle import Discarded, Handled, PolicyUsed, Progress, Skipped, Succeeded, Superseded
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.ledger.traces import Station, Told, Trace, pack, told_by, told_by_event, told_by_row, unpack

RETRY, DLQ, EVENTS, CHANGELOG = 1, 2, 3, 4
ID = WAITING.origin.topic_id


def record(topic: str, headers: Headers, *, partition: int = 0, value: bytes = b"{}", key: bytes = b"k") -> Record:
    """Return a record as it was read at offset 7, at the time 99."""
    return Record(topic, partition, 7, 99, key, value, headers)


def test_traces_survive_packing_and_come_back_in_order():
    """Also with the largest numbers, and the mark of damage."""
    late = Trace(1_000_000, Station.SUCCEEDED, 255, 1_000_000, 1_000_000, 2**63 - 1, 2**62, loose=True)
    early = Trace(1, Station.RETRY, 1, 9, 8, 0, -1)
    middle = Trace(1, Station.DEAD, 2, 1, 0, 5, 7)
    packed = pack(late) + pack(middle) + pack(early)
    assert len(packed) == 3 * 30
    assert unpack(packed) == [early, middle, late]


def test_a_copy_tells_whose_it_is_and_which_delivery(topics):
    """Foreign headers and payload are not looked at."""
    headers = (
        ("retry-foreign-x", b"1"),
        *encode_metadata(waiting(42, attempt=3, delivery=9, replays=2, replay_id="r")),
    )
    told = told_by(record("app.orders.retry", headers), Station.RETRY, RETRY, topics)
    assert (told.topic_id, told.offset, told.nobody) == (ID, 42, None)
    assert told.trace == Trace(9, Station.RETRY, RETRY, 3, 2, 7, 99)


@pytest.mark.parametrize(
    ("changes", "partition", "text"),
    [
        ({"group": "other"}, 0, "it belongs to group other"),
        ({}, 1, "another partition"),
        ({"origin": Origin("elsewhere", ID, 0, 1)}, 0, "another topic"),
    ],
)
def test_a_copy_of_somebody_else_is_nobodys(topics, changes, partition, text):
    """It says whose it is, and that is not ours to count."""
    headers = encode_metadata(replace(WAITING, **changes))
    told = told_by(record("app.orders.retry", headers, partition=partition), Station.RETRY, RETRY, topics)
    assert told.nobody is not None
    assert text in told.nobody


def test_damaged_headers_leave_what_can_be_read(topics):
    """Without an attempt or a possible delivery its place in the order is unknown; without an origin, its record."""
    headers = encode_metadata(waiting(42))
    torn = tuple((name, b"x" if name == RETRY_ATTEMPT else value) for name, value in headers)
    told = told_by(record("app.orders.retry", torn), Station.RETRY, RETRY, topics)
    assert (told.offset, told.trace.attempt, told.trace.loose, told.nobody) == (42, 0, True, None)
    early = (*headers, (RETRY_DELIVERY, b"0"))
    assert told_by(record("app.orders.retry", early), Station.RETRY, RETRY, topics).trace.loose
    told = told_by(record("app.orders.retry", headers[:2]), Station.RETRY, RETRY, topics)
    assert told.nobody is not None
    assert RETRY_ORIGIN in told.nobody
    assert told_by(record("app.orders.retry", ()), Station.RETRY, RETRY, topics).nobody is not None


def damaged_letter(topic: str, first: int, last: int) -> Headers:
    """Return the headers of the dead letter for offsets that could not be read."""
    error = UnreadableRecordsError(topic, 0, first, last, "the checksum of the batch is wrong")
    return encode_metadata(
        replace(
            dead(0),
            origin=Origin(topic, ID, 0, first),
            reason="damaged",
            error_type="retryapp.core.errors.UnreadableRecordsError",
            error_message=str(error),
        )
    )


@pytest.mark.parametrize(("first", "last"), [(5, 9), (5, 5)])
def test_a_dead_letter_for_a_damaged_batch_tells_its_range(topics, first, last):
    """Only its text has the last one."""
    told = told_by(record("app.orders.dlq", damaged_letter("orders", first, last)), Station.DEAD, DLQ, topics)
    assert (told.offset, told.last_offset, told.trace.loose, told.nobody) == (first, last, True, None)


def row(offset: int, topic_id: str, headers: Headers) -> Record:
    key = identity_of(Origin("orders", topic_id, 0, offset))
    return record("c", (), key=key, value=encode_row(PendingRow(b"k", b"{}", headers)))


def test_a_row_tells_what_its_copy_tells(topics):
    """Of one that cannot be read its key tells the offset, if it is of the main topic as it is now."""
    headers = encode_metadata(waiting(42, attempt=3, delivery=3))
    told = told_by_row(row(42, ID, headers), "now", topics)
    assert (told.topic_id, told.offset, told.trace) == (ID, 42, Trace(3, Station.ROW, CHANGELOG, 3, 0, 7, 99))
    torn = row(42, "now", ())
    for damaged in (torn, replace(torn, value=b"\xff"), replace(torn, value=b"\x03" + bytes(60))):
        told = told_by_row(damaged, "now", topics)
        assert (told.topic_id, told.offset, told.trace.station, told.trace.loose) == ("now", 42, Station.ROW, True)
    assert told_by_row(row(42, "former", ()), "now", topics).nobody is not None
    assert told_by_row(row(41, ID, headers), ID, topics).nobody == "its key is another record's"


def test_events_tell_of_success_and_of_counts(topics):
    """Other kinds, and other handlers, are passed over; what is no event is refused."""
    about = {"group": "app", "handler": "h", "failure_id": waiting(42).failure_id, "origin": waiting(42).origin.text}
    success = Succeeded(**about, attempt=2, started_ms=1, ended_ms=2, lateness_ms=0)
    skipped = Skipped(**about, first_offset=40, at_ms=1)
    probed = Succeeded(**about, attempt=2, delivery=5, replays=1, started_ms=1, ended_ms=2, lateness_ms=0)
    for event, *step in (
        (success, 2, Station.SUCCEEDED, EVENTS, 2, 0),
        (probed, 5, Station.SUCCEEDED, EVENTS, 2, 1),
        (skipped, 0, Station.SKIPPED, EVENTS, 0, 0),
        (Skipped(**about, why="old", delivery=3, attempt=2, at_ms=1), 3, Station.SKIPPED, EVENTS, 2, 0),
        (Superseded(**about, by_offset=44, at_ms=1), 0, Station.SUPERSEDED, EVENTS, 0, 0),
        (Superseded(**about, by_offset=44, delivery=3, attempt=2, at_ms=1), 3, Station.SUPERSEDED, EVENTS, 2, 0),
    ):
        told = told_by_event(record("e", (), value=event.to_json()), topics)
        assert (told.offset, told.trace) == (42, Trace(*step, 7, 99))
    facts = {"group": "app", "handler": "h", "main": "orders", "partition": 0, "from_offset": 0, "to_offset": 9}
    progress = Progress(**facts, from_ms=0, to_ms=1, received=9, first_try_ok=8, failed=1)
    assert told_by_event(record("e", (), value=progress.to_json()), topics) == progress
    policy = PolicyUsed(group="app", handler="h", main="orders", text="1m", digest="d", at_ms=1)
    for other in (progress.model_copy(update={"main": "clicks"}), policy):
        assert told_by_event(record("e", (), value=other.to_json()), topics) is None
    for raw in (b"{}", b"", success.model_copy(update={"failure_id": "?"}).to_json()):
        with pytest.raises(DamagedEventError):
            told_by_event(record("e", (), value=raw), topics)


def test_an_event_tells_what_was_discarded_and_of_which_offsets(topics):
    """Of a damaged batch all of them; its numbers are a guess, as a dead letter's."""
    origin = Origin("orders", ID, 0, 3)
    text = str(UnreadableRecordsError("orders", 0, 3, 6, "bad checksum"))
    name = f"{UnreadableRecordsError.__module__}.{UnreadableRecordsError.__qualname__}"
    facts = {
        "group": "app", "handler": "h", "failure_id": f"app/{origin.text}", "origin": origin.text, "fingerprint": "f",
        "policy": "p", "attempt": 2, "delivery": 3, "origin_timestamp_ms": -1, "first_failed_ms": 1, "started_ms": 2,
        "ended_ms": 3, "error_type": name, "error_message": text,
    }  # fmt: skip
    for kind, reason, last, loose in (
        ("discarded", "exhausted", -1, False), ("failed", "rejected", -1, False), ("discarded", "damaged", 6, True),
    ):  # fmt: skip
        event = Discarded(kind=kind, reason=reason, **facts)
        told = told_by_event(record("app.orders.events", (), value=event.to_json()), topics)
        assert isinstance(told, Told)
        assert told.trace == Trace(3, Station[kind.upper()], EVENTS, 2, 0, 7, 99, loose)
        assert (told.offset, told.last_offset) == (3, last)
    handled = Handled(**{name: facts[name] for name in ("group", "handler", "failure_id", "origin")}, at_ms=1)
    assert told_by_event(record("app.orders.events", (), value=handled.to_json()), topics) is None, "done leaves none"

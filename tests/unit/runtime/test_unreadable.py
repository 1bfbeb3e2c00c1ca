"""What the client library cannot decode: read leniently, or told of by offset and passed. On real batches' bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.codec import gzip_encode
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import ConsumerRecord

from retryapp.core.record import Record
from retryapp.ports import Stuck
from retryapp.runtime.clients import unreadable
from retryapp.runtime.clients.unreadable import KeptRecords, TolerantRecords, as_records, bare

OURS = TopicPartition("orders", 0)
OTHERS = TopicPartition("clicks", 0)
BASE, CRC, ATTRIBUTES, LAST_DELTA, PRODUCER, COUNT = 0, 17, 21, 23, 43, 57


@pytest.fixture(autouse=True)
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `orders` is read by somebody who takes damaged records."""
    monkeypatch.setattr(unreadable, "TOPICS", {"orders"})
    monkeypatch.setattr(unreadable, "_open_ends", {})


def batch(base: int, count: int = 3, *, header: bytes = b"ab", gzipped: bool = False) -> bytearray:
    """Return a batch of `count` records, each with one header of this two-byte name."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for n in range(count):
        builder.append(n, 1_700_000_000_000, b"k%d" % n, b"v%d" % n, [("ab", b"h")])
    raw = bytearray(builder.build())
    records = bytes(raw[61:]).replace(b"\x04ab", b"\x04" + header)
    if gzipped:
        records = gzip_encode(records)
        raw[ATTRIBUTES : ATTRIBUTES + 2] = struct.pack(">h", 1)
    raw[61:] = records
    raw[8:12] = struct.pack(">i", len(raw) - 12)
    raw[BASE:8] = struct.pack(">q", base)
    return signed(raw)


def signed(raw: bytearray) -> bytearray:
    raw[CRC:ATTRIBUTES] = struct.pack(">I", calc_crc32c(bytes(raw[ATTRIBUTES:])))
    return raw


def by_producer(raw: bytearray, producer_id: int) -> bytearray:
    raw[ATTRIBUTES : ATTRIBUTES + 2] = struct.pack(">h", 0x10)
    raw[PRODUCER : PRODUCER + 8] = struct.pack(">q", producer_id)
    return signed(raw)


def end_of_transaction(base: int, producer_id: int, *, commit: bool = True) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, 0, True, producer_id, 0, -1, 1 << 20)
    builder.append(0, 1_700_000_000_000, struct.pack(">hh", 0, commit), bytes(6), [])
    raw = bytearray(builder.build())
    raw[BASE : BASE + 8] = struct.pack(">q", base)
    raw[ATTRIBUTES : ATTRIBUTES + 2] = struct.pack(">h", 0x30)
    return signed(raw)


def flipped(raw: bytearray) -> bytearray:
    raw[-1] ^= 0x40
    return raw


def fetch(raw: bytes, at: int, tp: TopicPartition = OURS, wanted: Any = as_records) -> TolerantRecords:
    return TolerantRecords(tp, KeptRecords(bytes(raw)), [], at, wanted, None, True, 1)


def offsets(found: list[Any]) -> list[int | tuple[int, int]]:
    """Return offsets, and ranges of what could not be read."""
    return [
        (each.offset, damage.last_offset) if (damage := getattr(each, "damage", None)) else each.offset
        for each in found
    ]


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("tp", [OURS, OTHERS])
def test_a_header_name_that_is_not_utf_8_is_read_leniently(tp: TopicPartition, gzipped: bool) -> None:
    """Its bytes survive as lone surrogates; its neighbours and the next batches are read on in the same fetch."""
    raw = batch(0) + batch(3, header=b"\xff\xfe", gzipped=gzipped) + batch(6)
    records = fetch(raw, 0, tp)
    found = list(records)
    assert offsets(found) == list(range(9))
    assert found[4].headers == (("\udcff\udcfe", b"h"),)
    assert found[4].headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert (found[4].key, found[4].value) == (b"k1", b"v1")
    at_ms = found[4].timestamp_ms if tp is OURS else found[4].timestamp
    assert at_ms == 1_700_000_000_000
    assert records.next_fetch_offset == 9


def with_number(raw: bytearray, at: int, number: int) -> bytearray:
    """Put a number into a header, under the old checksum."""
    raw[at : at + 4] = struct.pack(">i", number)
    return raw


def no_headers(raw: bytearray) -> bytearray:
    """Give a record a negative number of headers, under a right checksum."""
    return signed(raw.replace(b"\x02\x04ab", b"\x03\x04ab", 1))


def no_gzip() -> bytearray:
    """Return a batch that does not decompress, under a right checksum."""
    raw = batch(3, gzipped=True)
    raw[61:] = b"no gzip at all" + bytes(len(raw) - 75)
    return signed(raw)


@pytest.mark.parametrize(
    ("damaged", "following", "checksum"),
    [
        (flipped(batch(3)), batch(6), True),
        (flipped(batch(3)), b"", True),
        (with_number(batch(3), LAST_DELTA, 0), batch(6), True),
        (with_number(batch(3), LAST_DELTA, 1), batch(6), True),
        (with_number(batch(3), LAST_DELTA, 1_000_000), batch(6), True),
        (with_number(batch(3), COUNT, 2), batch(6)[:70], True),
        (no_headers(batch(3)), batch(6), False),
        (no_gzip(), batch(6), False),
    ],
    ids=["value", "value of the last", "no offsets", "few offsets", "many offsets", "cut off", "headers", "gzip"],
)
def test_a_damaged_batch_is_one_range_and_ends_the_fetch(damaged: bytes, following: bytes, checksum: bool) -> None:
    """No sound record is skipped, no damaged one forgotten; the next fetch has the broker's transaction flags."""
    records = fetch(batch(0) + damaged + following, 0)
    found = list(records)
    assert offsets(found) == [0, 1, 2, (3, 5)]
    assert ("checksum" in found[-1].damage.problem) is checksum
    assert found[-1].value == b"", "copied, null would be a tombstone"
    assert records.next_fetch_offset == 6


def test_a_damaged_batch_that_was_passed_is_passed_again() -> None:
    """A broker that takes it for longer than it is goes on giving it, before what is asked for."""
    damaged = with_number(batch(3), LAST_DELTA, 1_000_000)
    assert offsets(list(fetch(damaged + batch(6) + batch(9), 6))) == [6, 7, 8, 9, 10, 11]
    (told,) = list(fetch(damaged + batch(6)[:70], 6))
    assert isinstance(told, Stuck), "the batch that follows is incomplete, and no more of it will come"


@pytest.mark.parametrize(("at", "number"), [(LAST_DELTA, 1_000_000), (LAST_DELTA, 4), (COUNT, 2)])
def test_the_last_batch_is_passed_in_steps_when_its_counts_disagree(at: int, number: int) -> None:
    """Nothing follows, so one step is sure; the broker gives the same batch again, which is no broken frame."""
    damaged = with_number(batch(3), at, number)
    told, position = [], 3
    while position < 6:
        records = fetch(damaged, position)
        told += list(records)
        position = records.next_fetch_offset
    assert offsets(told) == [(3, 3), (4, 4), (5, 5)]
    assert all(isinstance(each, Record) for each in told)


def test_what_a_broker_skips_of_a_damaged_batch_is_told_of_when_the_next_comes() -> None:
    """It takes the batch for shorter than it was, and nothing followed when it was read."""
    damaged = with_number(batch(3), LAST_DELTA, 0)
    assert offsets(list(fetch(damaged, 3))) == [(3, 3)]
    records = fetch(batch(6), 4)
    assert offsets(list(records)) == [(4, 5), 6, 7, 8]
    assert records.next_fetch_offset == 9


@pytest.mark.parametrize(("tp", "wanted"), [(OTHERS, as_records), (OURS, None)], ids=["topic", "consumer"])
def test_a_damaged_batch_of_another_topic_or_consumer_is_an_error_as_ever(tp: TopicPartition, wanted: Any) -> None:
    """Nobody there could take a range for what it is."""
    with pytest.raises(CorruptRecordException):
        list(fetch(flipped(batch(0)), 0, tp, wanted))
    assert isinstance(next(fetch(batch(0), 0, tp, wanted)), ConsumerRecord)


def test_a_missing_codec_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and the position stays."""

    def refuse(_self: object) -> Iterator[Any]:
        raise UnsupportedCodecError("Libraries for gzip compression codec not found")
        yield

    monkeypatch.setattr(unreadable._StockRecords, "_unpack_records", refuse)
    records = fetch(batch(3, gzipped=True), 3)
    (found,) = list(records)
    assert isinstance(found, Stuck)
    assert "gzip" in found.problem
    assert records.next_fetch_offset == 3


def test_a_broken_frame_is_no_reason_to_guess() -> None:
    """Where the next batch begins is unknown: the position stays."""
    raw = flipped(batch(0))
    raw[8:12] = struct.pack(">i", 20)
    records = fetch(raw, 0)
    found = list(records)
    assert [*map(type, found)] == [Stuck]
    assert records.next_fetch_offset == 0


def test_a_consumer_that_asks_for_bare_records_gets_what_the_others_get() -> None:
    """In lists, from within a batch on, odd batches and transactions included; the key is not changed on the way."""
    aborted, kept = 7, 8
    batches = {
        3: batch(0),
        6: batch(3, header=b"\xff\xfe"),
        9: batch(6),
        12: by_producer(batch(9), aborted),
        15: by_producer(batch(12), kept),
        16: end_of_transaction(15, aborted, commit=False),
        19: by_producer(batch(16), aborted),
        20: end_of_transaction(19, kept),
        21: end_of_transaction(20, aborted),
    }

    def given(*, lists: bool, start: int) -> list[Any]:
        raw = bytes(b"".join(each for end, each in batches.items() if end > start))  # as a broker answers
        aborts = [(aborted, 9)] if start < 16 else []
        records = TolerantRecords(OTHERS, KeptRecords(raw), aborts, start, bare if lists else None, None, True, 1)
        found = list(records)
        assert records.next_fetch_offset == 21
        assert any(isinstance(each, ConsumerRecord) for each in found) is not (lists or start > 18)
        if lists:
            found = [record for records in found for record in records]
        return [(each.offset, each.key, each.value, tuple(each.headers)) for each in found]

    offsets = [*range(9), *range(12, 15), *range(16, 19)]
    for start in range(21):
        records = given(lists=True, start=start)
        assert [record[0] for record in records] == [offset for offset in offsets if offset >= start]
        assert records == given(lists=False, start=start)
    assert bare(b"k") == b"k"


def test_lists_end_with_a_batch_and_say_how_far_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a list was not read yet: a reader may stop after each."""
    monkeypatch.setattr(unreadable, "LIST_RECORDS", 5)
    raw = b"".join(batch(base, 2) for base in range(0, 16, 2))
    records = fetch(raw, 1, OTHERS, bare)
    lists = [([record.offset for record in found], records.next_fetch_offset) for found in records]
    assert lists == [([1, 2, 3, 4, 5], 6), ([6, 7, 8, 9, 10, 11], 12), ([12, 13, 14, 15], 16)]


def test_a_damaged_batch_is_an_error_and_nothing_after_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists before it are sound; the reader that gets the error has not moved past what it was not given."""
    monkeypatch.setattr(unreadable, "LIST_RECORDS", 3)
    records = fetch(batch(0) + flipped(batch(3)) + batch(6), 0, OTHERS, bare)
    assert [record.offset for record in next(records)] == [0, 1, 2]
    assert records.next_fetch_offset == 3
    with pytest.raises(CorruptRecordException):
        next(records)

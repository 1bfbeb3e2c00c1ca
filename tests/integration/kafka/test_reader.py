"""Bounded reading on a real broker: committed records only, and always an end."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import islice
from unittest.mock import patch

from confluent_kafka import TopicPartition
from samples import removal, waiting_row

from retryapp.kafka import first_times, fold_changelog, read_record, read_topic, reader
from retryapp.kafka.reader import follow_topic


def values(connection, topic, **kwargs):
    """Values of what is read, sorted."""
    return sorted(record.value for record in read_topic(connection, topic, **kwargs))


def test_aborted_records_are_not_seen(connection, make_topic, transact):
    """A committed reader passes over aborted transactions, before, between and at the end."""
    topic = make_topic(2)
    transact(topic, 0, [b"lost-1"], end="abort")
    transact(topic, 0, [b"kept-1", b"kept-2"])
    transact(topic, 1, [b"kept-3"])
    transact(topic, 0, [b"lost-2", b"lost-3"], end="abort")
    assert values(connection, topic) == [b"kept-1", b"kept-2", b"kept-3"]


def test_an_open_transaction_does_not_hold_up_the_reader(connection, make_topic, transact):
    """The end is the last stable offset: what is still open is not waited for."""
    topic = make_topic(1)
    transact(topic, 0, [b"kept"])
    producer = transact(topic, 0, [b"open"], end="leave")
    assert values(connection, topic) == [b"kept"]
    producer.abort_transaction(10)


def test_start_stop_and_partitions_bound_the_reading(connection, make_topic, transact):
    """Stop is exclusive; offsets out of range are cut to what is there."""
    topic = make_topic(2)
    transact(topic, 0, [b"0", b"1", b"2", b"3"])
    transact(topic, 1, [b"other"])
    assert values(connection, topic, partitions=[0], start={0: 1}, stop={0: 3}) == [b"1", b"2"]
    assert values(connection, topic, partitions=[1]) == [b"other"]
    assert values(connection, topic, partitions=[0], start={0: -5}, stop={0: 10_000}) == [b"0", b"1", b"2", b"3"]
    assert values(connection, topic, partitions=[0], start={0: 10_000}) == []


def test_one_record_by_its_offset(connection, make_topic, transact):
    """A transaction marker, an aborted record and an offset beyond the end are no records."""
    topic = make_topic(1)
    transact(topic, 0, [b"a", b"b"])  # offsets 0, 1, marker 2
    transact(topic, 0, [b"lost"], end="abort")  # offset 3, marker 4
    found = read_record(connection, topic, 0, 1)
    assert found is not None
    assert found.value == b"b"
    assert [read_record(connection, topic, 0, offset) for offset in (2, 3, 4, 99)] == [None] * 4


def test_when_the_first_record_of_each_range_came(connection, make_topic, transact):
    """Aborted records and marks are none; one consumer looks at all partitions, and none where there is nothing."""
    topic = make_topic(4)
    transact(topic, 0, [b"a", b"b"])
    transact(topic, 1, [b"lost"], end="abort")
    transact(topic, 2, [b"0", b"1", b"2"])
    transact(topic, 3, [b"c"])
    ranges = {0: range(0, 3), 1: range(0, 2), 2: range(1, 4), 3: range(1, 1)}
    came_ms = {(each.partition, each.offset): each.timestamp_ms for each in read_topic(connection, topic)}
    with patch.object(reader, "_consumer", wraps=reader._consumer) as opened:
        assert first_times(connection, topic, ranges) == {0: came_ms[0, 0], 2: came_ms[2, 1]}
        assert first_times(connection, topic, {3: range(0)}) == {}
    assert opened.call_count == 1


def test_the_changelog_adds_up(connection, make_topic, publish):
    """Puts less removals; the last put of a record counts; records that are no rows are passed over."""
    topic = make_topic(2)
    gone, kept, other = (waiting_row(offset) for offset in (1, 2, 3))
    newer = waiting_row(2, due_at_ms=9)
    publish(topic, 0, b"retryapp-owner-mark:0", b"{}")
    for row in (gone, kept, removal(gone), newer):
        publish(topic, 0, row.identity, row.value)
    publish(topic, 1, other.identity, other.value)
    publish(topic, 1, b"progress", b"x")
    rows = fold_changelog(connection, topic, lambda _key, value: value)
    assert rows == {kept.identity: newer.value, other.identity: other.value}


def following(found, count):
    """The next so many records of a following, as partition, offset and value."""
    records = islice((record for record in found if record is not None), count)
    return sorted((record.partition, record.offset, record.value) for record in records)


def test_a_topic_is_followed_from_offsets_on(connection, make_topic, transact):
    """What is committed, then and later; None where there is no more for now, and no end."""
    topic = make_topic(2)
    transact(topic, 0, [b"before", b"a"])
    transact(topic, 1, [b"b"])
    transact(topic, 0, [b"lost"], end="abort")
    with closing(follow_topic(connection, topic, {0: 1, 1: 0})) as found:
        assert following(found, 2) == [(0, 1, b"a"), (1, 0, b"b")]
        assert [next(found) for _ in range(3)] == [None] * 3
        producer = transact(topic, 1, [b"open"], end="leave")
        transact(topic, 0, [b"later"])
        assert following(found, 1) == [(0, 5, b"later")]
        producer.commit_transaction(10)
        assert following(found, 1) == [(1, 2, b"open")]


def test_a_topic_is_followed_that_is_made_late(connection, make_topic, publish):
    """As a broker sees it that has not heard of it yet."""
    name = "made-late"

    def make():
        make_topic(1, name)
        publish(name, 0, None, b"first")

    with closing(follow_topic(connection, name, {0: 0})) as found:
        assert next(found) is None
        late = threading.Thread(target=make)
        late.start()
        assert following(found, 1) == [(0, 0, b"first")]
        late.join()


def test_what_retention_has_deleted_is_passed(connection, make_topic, publish, admin):
    """A following that begins there goes on with the first record that is kept."""
    topic = make_topic(1)
    for value in (b"0", b"1", b"2"):
        publish(topic, 0, None, value)
    admin._client.delete_records([TopicPartition(topic, 0, 2)])
    while admin.offsets(topic)[0].start < 2:
        time.sleep(0.05)
    with closing(follow_topic(connection, topic, {0: 0})) as found:
        assert following(found, 1) == [(0, 2, b"2")]

"""How far a group has come, and what was counted before that and not said yet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from history import Group

from retryapp.core import marks
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic
from retryapp.kafka.errors import DamagedProgressError
from retryapp.pipeline.analysis.cuts import take_cut
from retryapp.runtime.machine.clock import SystemClock
from retryapp.stage import wait_for

pytestmark = pytest.mark.timeout(120)


@contextmanager
def member(connection: KafkaConnection, group: str, topic: str) -> Iterator[None]:
    """Have the group run while the block does."""
    consumer = connection.client(Consumer, group_id=group)
    try:
        consumer.subscribe([topic])
        admin = KafkaAdmin(connection)
        wait_for(lambda: consumer.poll(0.1) is None and admin.describe_group(group).members, "it has joined")
        yield
    finally:
        consumer.close()


def test_a_cut_is_where_the_last_transactions_of_its_lanes_were(connection: KafkaConnection) -> None:
    """Or where somebody has set the group's offset. Kafka forgets offsets, and keeps those of a former main topic.

    Without the changelog, or with one that was made again, nothing is left out of partitions that the group had begun;
    a main topic that is gone is named.
    """
    group = Group(connection, partitions=6, has_main=True)
    main, name, changelog = group.topology.main, group.topology.group, group.topology.pending_changelog
    topic_id = group.admin.describe_topics([main])[main].topic_id
    group.operator.set_offsets(name, {(main, 0): 7, (main, 1): 9, (main, 2): 1_000, (main, 5): 5})
    written = (0, 5, "former"), *((number, 7, topic_id) for number in (0, 1, 3, 5)), (2, 1_000, "former")
    since_ms = defaultdict(lambda: 1, {3: SystemClock().wall_ms()})
    for number, offset, life in written:
        value = marks.progress_value({main: offset}, life, f"p1:3-{offset}@{since_ms[number]}:4,2,1")
        group.send(changelog, number, marks.PROGRESS, value)
    for _ in range(120):  # more than are read first
        group.send(changelog, 3, b"k", b"no progress")
    for _ in range(4):
        group.send(main, 4, b"k", b"v")
    group.flush()
    taken, handler = take_cut(group.admin, name), (group.admin.cluster_id(), name, main)
    assert [row[-1] for row in taken.rows] == [7, 9, 0, 7, 0, 5]
    assert taken.forgotten == (f"{name} {main} 3",)
    told = read_topic(connection, changelog, partitions=[3])
    now_ms = max(record.timestamp_ms for record in told if record.key == marks.PROGRESS)
    minutes = {0: (1, 60_001), 3: (since_ms[3], max(since_ms[3], now_ms))}  # a minute at most, and none of the future
    assert taken.tallies == tuple((*handler, number, 3, 7, *minutes[number], 4, 2, 1, 1) for number in (0, 3))
    with member(connection, name, main):  # a lane that has nothing to do writes nothing
        assert [row[-1] for row in take_cut(group.admin, name).rows] == [7, 9, 0, 7, 0, 7]
    group.operator.delete_topic(changelog)
    taken = take_cut(group.admin, name)
    assert [row[-1] for row in taken.rows] == [7, 9, 1_000, 0, 4, 5]
    assert (taken.forgotten, taken.tallies) == ((f"{name} {main} 4",), ())
    group.make()  # a worker's next start would make the changelog again
    taken = take_cut(group.admin, name)
    assert ([row[-1] for row in taken.rows], taken.forgotten) == ([7, 9, 1_000, 0, 0, 5], ())
    group.send(group.topology.dlq, 4, b"k", b"v")  # so the group had begun that partition
    group.flush()
    taken = take_cut(group.admin, name)
    assert ([row[-1] for row in taken.rows], taken.forgotten) == ([7, 9, 1_000, 0, 4, 5], (f"{name} {main} 4",))
    group.operator.delete_topic(main)
    taken = take_cut(group.admin, name)
    assert (taken.rows, taken.gone) == ([], (main,))
    assert taken.lives.keys() == {*group.topology.owned} - {changelog, group.topology.control}


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"v":1}'])
def test_a_damaged_progress_record_is_named(connection: KafkaConnection, value: bytes) -> None:
    """With its place: another program has written it."""
    group = Group(connection, has_main=True)
    changelog = group.topology.pending_changelog
    group.send(changelog, 1, marks.PROGRESS, value)
    group.flush()
    with pytest.raises(DamagedProgressError, match=rf"{re.escape(changelog)}\[1\]@0"):
        take_cut(group.admin, group.topology.group)

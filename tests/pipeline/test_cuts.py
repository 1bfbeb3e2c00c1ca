"""How far a group has come: by its committed offsets, and where Kafka has none by what its lanes wrote down."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from history import Group

from retryapp.core import marks
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.analysis.cuts import take_cut

pytestmark = pytest.mark.timeout(120)


def test_how_far_a_group_has_come_and_how_far_that_was_counted(connection: KafkaConnection) -> None:
    """Kafka forgets offsets after a week, and may keep one of a main topic that was made again since.

    Without the changelog nothing is left out; a main topic that is gone is named.
    """
    group = Group(connection, partitions=6, has_main=True)
    main, name, changelog = group.topology.main, group.topology.group, group.topology.pending_changelog
    topic_id = group.admin.describe_topics([main])[main].topic_id
    notes = {0: (7, f"m:{topic_id} r0:life p1:3-7@1:2,2,0"), 1: (9, ""), 2: (1_000, "m:former r0:life")}
    consumer = connection.client(Consumer, group_id=name)
    consumer.commit(offsets=[TopicPartition(main, number, *note) for number, note in notes.items()], asynchronous=False)
    consumer.close()
    for number, life in ((3, "former"), (3, topic_id), (4, "former")):
        value = marks.progress_value({main: 5}, life, "p1:2-5@1:3,3,0")
        group.send(changelog, number, marks.PROGRESS, value)
    for _ in range(4):
        group.send(main, 5, b"k", b"v")
    group.flush()

    def found() -> list[tuple[int, int]]:
        taken = take_cut(group.admin, name)
        assert [row[:-1] for row in taken.rows] == [row[:-1] for row in taken.counted]
        return [(row[-1], each[-1]) for row, each in zip(taken.rows, taken.counted, strict=True)]

    assert found() == [(7, 3), (9, 9), (0, 0), (5, 2), (0, 0), (0, 0)]
    assert take_cut(group.admin, name).forgotten == (f"{name} {main} 3",)
    group.operator.delete_topic(changelog)
    assert found() == [(7, 3), (9, 9), (0, 0), (0, 0), (0, 0), (4, 4)]
    assert take_cut(group.admin, name).forgotten == (f"{name} {main} 5",)
    group.operator.delete_topic(main)
    taken = take_cut(group.admin, name)
    assert (taken.rows, taken.gone) == ([], (main,))
    assert taken.lives.keys() == {*group.topology.owned} - {changelog, group.topology.control}

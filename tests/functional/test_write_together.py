"""Records that are written together: all or none, and several writers in one order everywhere."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from retryapp.core.hops import Outgoing
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic
from retryapp.kafka.writer import write_together

pytestmark = pytest.mark.broker


def written(connection: KafkaConnection, topic: str, values: list[bytes]) -> dict[int, list[bytes | None]]:
    """Write each value to all partitions of a topic, side by side; return what readers see by partition."""

    def write(value: bytes) -> None:
        records = [Outgoing(topic, number, None, value, ()) for number in range(4)]
        write_together(connection, topic, records)

    with ThreadPoolExecutor(len(values)) as pool:
        for done in [pool.submit(write, value) for value in values]:
            done.result()
    deadline_s = time.monotonic() + 10
    while True:  # until a broker has marked all partitions: a transaction's commit does not wait for that
        seen: dict[int, list[bytes | None]] = {}
        for record in read_topic(connection, topic):
            seen.setdefault(record.partition, []).append(record.value)
        if sum(map(len, seen.values())) >= 4 * len(values) or time.monotonic() >= deadline_s:
            return seen


def test_writers_of_one_id_come_one_after_the_other(bootstrap: str) -> None:
    """Whichever is fenced begins anew: all partitions have all records, in one order."""
    connection, topic = KafkaConnection(bootstrap), "together"
    admin = KafkaAdmin(connection)
    admin.create_main_topic(topic, partitions=4)
    admin.wait_for_topics([topic])
    values = [b"%d" % n for n in range(8)]
    seen = written(connection, topic, values)
    assert [sorted(each) for each in seen.values()] == [values] * 4
    assert all(each == seen[0] for each in seen.values())

"""Records that are written together: all or none, and several writers in one order everywhere."""

from __future__ import annotations

from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from retryapp.core.hops import Outgoing
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic
from retryapp.kafka.writer import write_together

pytestmark = pytest.mark.broker


def write(bootstrap: str, topic: str, value: bytes) -> None:
    """Write a value to all partitions of a topic."""
    write_together(KafkaConnection(bootstrap), topic, [Outgoing(topic, number, None, value, ()) for number in range(4)])


def written(bootstrap: str, topic: str, values: list[bytes], pool: Executor) -> dict[int, list[bytes | None]]:
    """Write each value side by side; return what readers see by partition."""
    connection = KafkaConnection(bootstrap)
    for done in [pool.submit(write, bootstrap, topic, value) for value in values]:
        done.result()
    while True:  # until a broker has marked all partitions: a transaction's commit does not wait for that
        seen: dict[int, list[bytes | None]] = {}
        for record in read_topic(connection, topic):
            seen.setdefault(record.partition, []).append(record.value)
        if sum(map(len, seen.values())) >= 4 * len(values):
            return seen


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param(partial(ThreadPoolExecutor, 8), id="threads"),
        pytest.param(partial(ProcessPoolExecutor, 3, get_context("spawn")), id="processes"),
    ],
)
def test_writers_of_one_id_come_one_after_the_other(bootstrap: str, beside: partial[Executor]) -> None:
    """Of one process they wait; of several, whichever is fenced begins anew: all partitions have one order."""
    topic = f"together-{beside.func.__name__}"
    admin = KafkaAdmin(KafkaConnection(bootstrap))
    admin.create_main_topic(topic, partitions=4)
    admin.wait_for_topics([topic])
    values = [b"%d" % n for n in range(9)]
    with beside() as pool:
        seen = written(bootstrap, topic, values, pool)
    assert [sorted(each) for each in seen.values()] == [values] * 4
    assert all(each == seen[0] for each in seen.values())

"""Records at and beyond the sizes that topics take, with a real worker: dead or waiting, and nothing stands still."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from retryapp.broker.probe import free_ports
from retryapp.core.headers import decode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic

LIMIT = 100_000
"""The main topic's `max.message.bytes`."""

PROGRAM = """
import faust
from retryapp import Retries, RetryPolicy

app = faust.App({group!r}, broker="kafka://{bootstrap}", store="rocksdb://", broker_session_timeout=6.0)
retries = Retries(app, grace="1s", drain="1s", start_timeout="30s")

@retries.handler({topic!r}, value=bytes, policy=RetryPolicy("200ms"))
async def never(value: bytes) -> None:
    raise RuntimeError("never")
"""


@pytest.fixture
def topology(bootstrap: str) -> HandlerTopology:
    """A handler's topics; the main topic has one partition and a small limit."""
    made = HandlerTopology(f"g{uuid.uuid4().hex[:8]}", f"t{uuid.uuid4().hex[:8]}", delays_ms=(200,))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(made.main, num_partitions=1, replication_factor=1, config={"max.message.bytes": str(LIMIT)})
    admin.create_topics([wanted])[made.main].result(10)
    KafkaAdmin(KafkaConnection(bootstrap)).wait_for_topics([made.main])
    return made


@pytest.fixture
def worker_log(bootstrap: str, topology: HandlerTopology, tmp_path: Path) -> Iterator[Path]:
    """A worker whose handler always fails; its log."""
    (tmp_path / "app.py").write_text(PROGRAM.format(group=topology.group, bootstrap=bootstrap, topic=topology.main))
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "faust", "-A", "app", "worker", "-l", "info"],
            cwd=tmp_path,
            env={**os.environ, "RETRYAPP_WEB_PORT": str(min(free_ports(1)[0], 65_000))},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait(10)
        print(log.read_text(errors="replace")[-6_000:])  # noqa: T201 - for the failure report


Send = Callable[..., None]


@pytest.fixture
def send(bootstrap: str, topology: HandlerTopology) -> Send:
    """Publish one value to the main topic; raise what the broker says."""

    def publish(value: bytes, compression: str = "none") -> None:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "message.max.bytes": 10_000_000, "compression.type": compression}
        )
        errors: list[object] = []
        producer.produce(
            topology.main, value, key=b"k", partition=0, on_delivery=lambda error, _m: error and errors.append(error)
        )
        assert producer.flush(10) == 0
        if errors:
            raise KafkaException(errors[0])

    return publish


def dead_letters(bootstrap: str, topology: HandlerTopology, count: int) -> list[tuple[Record, RetryMetadata]]:
    """Wait for so many dead letters."""
    deadline_s = time.monotonic() + 45
    connection = KafkaConnection(bootstrap)
    while True:
        found = []
        if topology.dlq in KafkaAdmin(connection).describe_topics([topology.dlq]):
            for record in read_topic(connection, topology.dlq):
                metadata = decode_metadata(record.headers)
                assert metadata is not None
                found.append((record, metadata))
        if len(found) >= count:
            return sorted(found, key=lambda each: each[1].origin.offset)
        assert time.monotonic() < deadline_s, f"{len(found)} dead letters of {count}"
        time.sleep(0.2)


def largest(send: Send) -> bytes:
    """Publish the largest value that the main topic takes, uncompressed; return it."""
    size = LIMIT - 200
    value = os.urandom(LIMIT)
    low, high = size, LIMIT  # the broker takes `low`, and refuses `high`
    send(value[:low])
    while high - low > 1:
        middle = (low + high) // 2
        try:
            send(value[:middle])
            low = middle
        except KafkaException:
            high = middle
    return value[:low]


def test_the_largest_record_of_the_main_topic_goes_the_whole_way(
    bootstrap: str, topology: HandlerTopology, send: Send, worker_log: Path
) -> None:
    """Byte for byte through retry topic, table and redelivery, to a dead letter with its value."""
    value = largest(send)
    count = sum(1 for _ in read_topic(KafkaConnection(bootstrap), topology.main))
    found = dead_letters(bootstrap, topology, count)
    assert {metadata.reason for _, metadata in found} == {"exhausted"}
    assert all(metadata.attempt == 2 for _, metadata in found)
    assert max(len(record.value or b"") for record, _ in found) == len(value)
    assert value in {record.value for record, _ in found}
    assert "lane_failed" not in worker_log.read_text()


def test_a_compressed_record_that_no_copy_can_hold_is_dead_at_once_and_holds_nothing_up(
    bootstrap: str, topology: HandlerTopology, send: Send, worker_log: Path
) -> None:
    """The main topic took it compressed. Its neighbours go their way; the lane never fails."""
    send(b"before")
    send(bytes(2_000_000), "lz4")
    send(b"after")
    found = dead_letters(bootstrap, topology, 3)
    assert [(m.origin.offset, m.reason, m.attempt) for _, m in found] == [
        (0, "exhausted", 2),
        (1, "too-large", 1),
        (2, "exhausted", 2),
    ]
    assert [record.value for record, _ in found] == [b"before", b"", b"after"]
    assert found[1][0].key == b"k"
    assert found[1][1].error_message == "never"
    assert "lane_failed" not in worker_log.read_text()

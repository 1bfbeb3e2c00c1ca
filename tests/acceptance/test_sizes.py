"""Big records, and many due at once: what fits goes the whole way, what does not is named and holds nobody up."""

from __future__ import annotations

import random
import zlib

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import Answer, HandlerSpec, Stage, Visit, wait_for

from retryapp.kafka import KafkaAdmin, read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

SMALL_LIMIT = 60_000


def publish(stage: Stage, topic: str, values: list[bytes], compression: str = "none") -> None:
    """Publish values, each in a batch of its own, to partition 0; all must be taken."""
    client = Producer(
        {"bootstrap.servers": stage.bootstrap, "message.max.bytes": 10_000_000, "compression.type": compression}
    )
    errors: list[object] = []
    for value in values:
        client.produce(topic, value, partition=0, on_delivery=lambda error, _m: errors.append(error) if error else None)
        assert client.flush(20) == 0
    assert not errors


def digests(visits: list[Visit], attempt: int) -> list[int]:
    """Return checksums of the values of an attempt: a failing comparison of megabytes is unreadable."""
    return sorted(zlib.crc32(visit.value or b"") for visit in visits if visit.attempt == attempt)


@pytest.mark.timeout(120)
def test_a_million_bytes_and_three_megabytes_that_fit_only_compressed(stage: Stage) -> None:
    """Values of 1,000,000 bytes, and of the size that fits exactly, come back as they were.

    Of 3 MB the broker took a few compressed kilobytes: the handler gets them; one that fails is dead with its
    coordinates, by which it can still be read.
    """
    rng = random.Random(7)
    topic = stage.main_topic(partitions=1)
    limit = int(KafkaAdmin(stage.connection).describe_topics([topic])[topic].config["max.message.bytes"])
    exact = rng.randbytes(limit - 72)  # what a batch with one record and no key needs besides
    big = [rng.randbytes(1_000_000) for _ in range(3)]
    fine, hopeless = b"f" * 3_000_000, b"h" * 3_000_000
    stage.service.rule = lambda visit: (
        Answer(503) if visit.value == hopeless or (visit.attempt == 1 and visit.value != fine) else Answer()
    )
    stage.program(HandlerSpec(topic=topic, policy="500ms", value="bytes", concurrency=2))
    worker = stage.worker()
    with pytest.raises(AssertionError):
        publish(stage, topic, [exact + b"x"])
    publish(stage, topic, [*big, exact])
    publish(stage, topic, [fine, hopeless], "gzip")
    publish(stage, topic, [b"small"])
    stage.wait_settled(topic)
    visits = stage.service.of(topic)
    retried = [*big, exact, b"small"]
    assert digests(visits, 1) == sorted(map(zlib.crc32, [*retried, fine, hopeless]))
    assert digests(visits, 2) == sorted(map(zlib.crc32, retried))
    evidence = stage.evidence(topic)
    ((record, metadata),) = evidence.dead()
    assert (metadata.reason, record.value) == ("too-large", b"")
    assert metadata.error_type.endswith("ServiceError")
    origin = metadata.origin
    kept = next(read_topic(stage.connection, origin.topic, start={origin.partition: origin.offset}))
    assert (kept.offset, kept.value == hopeless) == (origin.offset, True)
    assert evidence.repeated_handoffs() == {}
    assert "retryapp.lane_failed" not in worker.log


@pytest.mark.timeout(120)
def test_more_due_at_once_than_the_smallest_topic_limit(stage: Stage) -> None:
    """Many medium records come due while no worker runs: 2 MB in one go, through topics that take 125 kB."""
    rng = random.Random(8)
    topic = f"medium-{stage.group}"
    wanted = NewTopic(topic, num_partitions=1, replication_factor=1, config={"max.message.bytes": str(SMALL_LIMIT)})
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.create_topics([wanted])[topic].result(10)
    KafkaAdmin(stage.connection).wait_for_topics([topic])
    values = [rng.randbytes(15_000) for _ in range(140)]
    stage.service.rule = lambda visit: Answer(503 if visit.attempt == 1 else 200)
    stage.program(HandlerSpec(topic=topic, policy="1500ms", value="bytes", concurrency=8))
    first = stage.worker()
    publish(stage, topic, values)
    evidence = stage.evidence(topic)
    wait_for(lambda: len(evidence.retries()) == len(values), "all have failed")
    assert first.stop() == 0
    last_due_ms = max(evidence.due_times().values())
    second = stage.worker()
    stage.wait_settled(topic)
    assert digests(stage.service.of(topic), 2) == sorted(map(zlib.crc32, values))
    assert evidence.repeated_handoffs() == {}
    fired = [record.timestamp_ms for record, _ in evidence.redeliveries()]
    assert sum(at_ms > last_due_ms for at_ms in fired) > 70, "many were due when the second worker came"
    assert "retryapp.lane_failed" not in first.log + second.log

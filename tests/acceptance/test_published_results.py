"""What handlers publish, on a real broker: each result once, whatever dies; and no topic that stops a partition."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka.admin import AdminClient, NewTopic
from harness import HandlerSpec, Stage, wait_for

from retryapp.core.lifecycle import Progress, decode_event
from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

POLICY = "200ms 400ms"
PARTITIONS = 3
ROUND = 12
"""Records published before each life: a quarter each fails never, once, twice, always."""
CRASHES: dict[str, tuple[tuple[str, str, int], ...]] = {
    "exactly_once": (
        ("Producer.send_batch", "after", 1),
        ("Producer.send_offsets_to_transaction", "after", 0),
        ("Producer.commit_transaction", "before", 1),
        ("Producer.commit_transaction", "during", 0),
        ("Producer.commit_transaction", "after", 0),
        ("KafkaTransport.apply", "before", 1),
    ),
    "at_least_once": (
        ("Producer.send_batch", "after", 1),
        ("PlainLane._publish", "after", 0),
        ("PlainLane._commit_offsets", "after", 1),
    ),
}
"""Where a worker ends itself with SIGKILL, holding results: call, moment, and how many calls go well before."""


def results(stage: Stage, out: str) -> list[dict[str, Any]]:
    """Return what a committed reader of the output topic sees."""
    records = next(iter(map(stage.evidence, stage.handlers))).records(out)
    for record in records:
        assert record.partition == DefaultPartitioner()(record.key, list(range(PARTITIONS)), [])
    return [json.loads(record.value or b"") for record in records]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("delivery", CRASHES)
def test_each_result_is_there_once_whatever_dies(stage: Stage, delivery: str) -> None:
    """Workers die at each step of a transaction, and once from outside; without transactions there may be copies.

    Attempts that failed have left nothing, and the result is that of the attempt which was fine.
    """
    topic, out = stage.main_topic(), stage.main_topic("payments", PARTITIONS)
    handler = HandlerSpec(topic=topic, policy=POLICY, publishes=out)
    sent = 0
    for point, moment, after in CRASHES[delivery]:
        crash = {"point": point, "moment": moment, "holding": "publishes", "to": out, "after": after}
        stage.program(handler, options={"delivery": delivery}, crash=crash)
        sent += stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(sent, sent + ROUND)])
        worker = stage.worker(f"life{len(stage.workers)}", ready=False)
        assert worker.wait(30) == -signal.SIGKILL, worker.log[-3000:]
        assert f"crash: {crash}" in worker.log
    stage.program(handler, options={"delivery": delivery})
    killed = stage.worker("killed")
    seen = len(results(stage, out))
    sent += stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(sent, sent + 20 * ROUND)])
    wait_for(lambda: len(results(stage, out)) > seen, "it publishes")
    killed.kill()
    print(f"killed from outside with {len(results(stage, out)) - seen} results")  # noqa: T201 - for the report
    stage.worker("last")
    stage.wait_settled(topic)
    found = results(stage, out)
    expected = Counter((i, i % 4 + 1) for i in range(sent) if i % 4 < 3)
    seen_by_reader = Counter((result["id"], result["attempt"]) for result in found)
    print(f"{len(found)} results of {len(expected)}")  # noqa: T201 - for the report
    if delivery == "exactly_once":
        assert seen_by_reader == expected
    else:
        assert set(seen_by_reader) == set(expected)
    keys = {result["id"]: result["idempotency_key"] for result in found}
    assert len(set(keys.values())) == len(keys)
    assert {(result["id"], result["idempotency_key"]) for result in found} == set(keys.items())
    assert stage.service.done(topic) == {i for i in range(sent) if i % 4 < 3}


@pytest.mark.timeout(120)
def test_a_topic_that_does_not_serve_fails_attempts_and_no_partition(stage: Stage) -> None:
    """Missing, ours, compacted without a key, too small: the others go on, and a topic that is made later is found."""
    topic, out = stage.main_topic(partitions=1), stage.main_topic("payments", PARTITIONS)
    missing, small = f"missing-{stage.group}", f"small-{stage.group}"
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    wanted = NewTopic(small, num_partitions=1, replication_factor=1, config={"max.message.bytes": "100"})
    admin.create_topics([wanted])[small].result(10)
    KafkaAdmin(stage.connection).wait_for_topics([small])
    stage.program(HandlerSpec(topic=topic, policy="6s", publishes=out))
    worker = stage.worker()
    ours = stage.topology(topic).dlq
    records = [{"id": 0, "to": missing}, {"id": 1}, {"id": 2, "to": small}, {"id": 3, "to": ours}, {"id": 4}]
    stage.produce(topic, records, 1)
    wait_for(lambda: len(results(stage, out)) == 2, "the others publish")
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 3, "three wait")
    told = {m.origin.offset: (m.error_type, m.error_message) for _, m in evidence.retries()}
    kinds = [error_type.rsplit(".", 1)[1] for error_type, _ in told.values()]
    assert kinds == ["DestinationError", "PublishRefusedError", "PublishRefusedError"]
    assert "no such topic" in told[0][1]
    assert "max.message.bytes" in told[2][1]
    assert "retryapp's own" in told[3][1]
    assert missing not in KafkaAdmin(stage.connection).topic_names(), "looking makes no topic"
    KafkaAdmin(stage.connection).create_main_topic(missing, partitions=PARTITIONS)
    stage.wait_settled(topic)
    assert [result["attempt"] for result in results(stage, missing)] == [2]
    assert sorted(metadata.origin.offset for _, metadata in evidence.dead()) == [2, 3]
    assert "retryapp.lane_failed" not in worker.log


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_a_topic_that_is_deleted_under_an_open_lane_stops_it_once(stage: Stage) -> None:
    """Its transaction cannot end; then handlers are told, and what does not publish there goes on."""
    topic, out = stage.main_topic(partitions=1), stage.main_topic("payments", PARTITIONS)
    gone, admin = stage.main_topic("gone", PARTITIONS), AdminClient({"bootstrap.servers": stage.bootstrap})
    stage.program(HandlerSpec(topic=topic, policy="1d", publishes=out))
    worker = stage.worker()
    stage.produce(topic, [{"id": 0, "to": gone}], 1)
    wait_for(lambda: results(stage, gone), "it publishes")
    admin.delete_topics([gone])[gone].result(10)
    wait_for(lambda: gone not in KafkaAdmin(stage.connection).topic_names(), "it is gone")
    stage.produce(topic, [{"id": 1, "to": gone}, {"id": 2}], 1)
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 1, "its record waits", timeout_s=90)
    wait_for(lambda: [result["id"] for result in results(stage, out)] == [2], "the other is published")
    assert worker.log.count("retryapp.lane_failed") == 1
    ((_, metadata),) = evidence.retries()
    assert "no such topic" in metadata.error_message


def test_records_whose_handler_published_count_as_fine(stage: Stage) -> None:
    """In the progress that a stopped worker writes down."""
    topic, out = stage.main_topic(partitions=1), stage.main_topic("payments", PARTITIONS)
    stage.program(HandlerSpec(topic=topic, policy=POLICY, publishes=out))
    worker = stage.worker()
    stage.produce(topic, [{"id": i, "fail": i % 2} for i in range(10)], 1)
    stage.wait_settled(topic)
    assert worker.stop() == 0
    evidence = stage.evidence(topic)
    events = [decode_event(record.value or b"") for record in evidence.records(evidence.topology.events)]
    progress = [event for event in events if isinstance(event, Progress)]
    counted = [sum(getattr(event, name) for event in progress) for name in ("received", "first_try_ok", "failed")]
    assert counted == [10, 5, 5]

"""Topics of ours that somebody deletes while the workers are down, and what the next start makes of it."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]

WAITING = set(range(4))
HEALTHY = set(range(4, 8))
LATER = set(range(8, 12))


def wait_with(stage: Stage, topic: str) -> None:
    """Have four records wait and four done, then stop the worker."""
    worker = stage.worker()
    stage.produce(topic, [{"id": n, "fail": int(n in WAITING)} for n in sorted(WAITING | HEALTHY)])
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, len(WAITING)), "four wait")
    assert stage.service.done(topic) == HEALTHY
    assert worker.stop() == 0


def delete(stage: Stage, topic: str) -> None:
    """Delete a topic and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    for future in admin.delete_topics([topic]).values():
        future.result(20)
    wait_for(lambda: topic not in admin.list_topics(timeout=10).topics, "it is gone")


def set_offsets(stage: Stage, topic: str, offsets: dict[int, int]) -> None:
    """Set the group's offsets, as kafka-consumer-groups.sh does."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    for future in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(stage.group, wanted)]).values():
        future.result(20)


@pytest.mark.parametrize("decided", ["earliest", "current"])
def test_a_pending_changelog_that_was_made_again(stage: Stage, decided: str) -> None:
    """Nothing is delivered and the log says what to do; then all waits once more, or is gone by decision."""
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="15s"), partitions=2)
    topology = stage.topology(topic)
    wait_with(stage, topic)
    delete(stage, topology.pending_changelog)

    shut = stage.worker(ready=False)
    stage.produce(topic, [{"id": n} for n in sorted(LATER)])
    wait_for(lambda: shut.log.count("ChangelogReplacedError") >= 2, "both lanes say it")
    retry = topology.retry_topics[0]
    assert f"{topology.pending_changelog} was deleted and made again" in shut.log
    assert f"{retry} wait once more" in shut.log
    assert shut.get("/retries/ready")[0] == 503
    assert stage.service.done(topic) == HEALTHY
    assert shut.stop() == 0

    now = stage.evidence(topic).committed(retry)
    set_offsets(stage, retry, now if decided == "current" else dict.fromkeys(now, 0))
    goes_on = stage.worker()
    expected = HEALTHY | LATER | (WAITING if decided == "earliest" else set())
    wait_for(lambda: stage.service.done(topic) == expected, "what was decided is done", timeout_s=60)
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 0), "nothing waits")
    assert "dropped and rebuilt: it is a copy of" in goes_on.log
    assert goes_on.stop() == 0


def test_a_retry_topic_that_was_made_again(stage: Stage) -> None:
    """Its offsets lie behind its end: the lanes stay shut and name it; with offsets set, what waits fires."""
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="15s"), partitions=2)
    retry = stage.topology(topic).retry_topics[0]
    wait_with(stage, topic)
    delete(stage, retry)

    shut = stage.worker(ready=False)
    wait_for(lambda: shut.log.count("OffsetsGoneError") >= 2, "both lanes say it")
    assert f"{retry}[0]: the group is at offset" in shut.log
    assert stage.service.done(topic) == HEALTHY
    assert shut.stop() == 0

    set_offsets(stage, retry, {0: 0, 1: 0})
    goes_on = stage.worker()
    wait_for(lambda: stage.service.done(topic) == HEALTHY | WAITING, "what waits fires", timeout_s=60)
    assert goes_on.stop() == 0


def test_a_changelog_that_goes_away_under_a_running_worker(stage: Stage) -> None:
    """The log names it, and not at each of the client's tries; once it is back and decided, what waits fires."""
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="4s"), partitions=2)
    topology = stage.topology(topic)
    worker = stage.worker()
    stage.produce(topic, [{"id": n, "fail": 1} for n in sorted(WAITING)])
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, len(WAITING)), "all wait")
    delete(stage, topology.pending_changelog)
    stage.produce(topic, [{"id": n} for n in sorted(HEALTHY)])
    wait_for(lambda: "retryapp.lane_failed" in worker.log, "a lane has heard of it", timeout_s=60)
    assert worker.log.count(f"Topic {topology.pending_changelog} not found") <= 3, "the client names it at each try"
    assert worker.stop() == 0

    again = stage.worker(ready=False)
    wait_for(lambda: again.log.count("ChangelogReplacedError") >= 2, "both lanes say it")
    assert again.stop() == 0
    set_offsets(stage, topology.retry_topics[0], {0: 0, 1: 0})
    goes_on = stage.worker()
    wait_for(lambda: stage.service.done(topic) == HEALTHY | WAITING, "nothing is lost", timeout_s=60)
    assert goes_on.stop() == 0

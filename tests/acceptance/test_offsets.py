"""Offsets that cannot be and topics that were deleted: the lane stays shut, says why, and works again once decided."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from acceptance.books import delete_group, partitions
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from harness import HandlerSpec, Stage, Worker, wait_for

from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]


WAITING = set(range(4))
HEALTHY = set(range(4, 8))
LATER = set(range(8, 12))


class Group:
    """What an operator does to a group whose workers have stopped."""

    def __init__(self, stage: Stage) -> None:
        self._admin = AdminClient({"bootstrap.servers": stage.bootstrap})
        self._name = stage.group

    def set(self, offsets: dict[tuple[str, int], int]) -> None:
        """Set offsets."""
        wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(self._name, wanted)
        for future in self._admin.alter_consumer_group_offsets([request]).values():
            for done in future.result(10).topic_partitions:
                assert done.error is None, done

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self._admin.delete_topics([topic])[topic].result(20)
        wait_for(lambda: topic not in self._admin.list_topics(timeout=10).topics, "it is gone")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset."""
        for future in self._admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(10)


def last_errors(worker: Worker, *topics: str) -> str:
    """Return what the worker's pages say of the lanes of handlers, a line a partition."""
    said = []
    for topic in topics:
        said += [f"{row['state']} {row['last_error']}" for row in partitions(worker, topic)]
    return "\n".join(said)


@pytest.mark.timeout(120)
def test_lanes_whose_offsets_cannot_be_stay_shut_until_somebody_decides(stage: Stage) -> None:
    """Offsets behind the end or before the start: nothing is delivered, nothing is skipped.

    Where they are gone altogether the lane goes on where it was, by what it wrote down.
    """
    cut, lost = stage.main_topic("cut"), stage.main_topic("lost")
    stage.program(HandlerSpec(topic=cut, policy="1h"), HandlerSpec(topic=lost, policy="1h"))
    first = stage.worker()
    for topic in (cut, lost):
        stage.produce(topic, [{"id": f"{topic}{n}", "fail": int(n < 2)} for n in range(10)])  # one a partition waits
    for topic in (cut, lost):
        evidence = stage.evidence(topic)
        wait_for(
            lambda evidence=evidence: (evidence.unsettled(), evidence.waiting()) == (0, 2),  # type: ignore[misc]
            f"{topic} is at rest",
        )
    assert first.stop() == 0
    kept = {
        topic: {
            (source, partition): offset
            for source in stage.topology(topic).consumed
            for partition, offset in stage.evidence(topic).committed(source).items()
        }
        for topic in (cut, lost)
    }
    group = Group(stage)
    delete_group(stage)
    group.set({**kept[cut], (cut, 0): 1_000, (cut, 1): 1})
    group.delete_records(cut, 1, 3)
    delivered = len(stage.service.visits)
    assert delivered == 20

    second = stage.worker(ready=False)
    reasons = (
        f"{cut}[0]: the group is at offset 1000, but the topic has 0 to 5: the topic was cut or made again",
        f"{cut}[1]: the group is at offset 1, but the topic has 3 to 5: up to 2 records were deleted unread",
    )

    def all_told() -> bool:
        said = last_errors(second, cut)
        return all(reason in said for reason in reasons)

    wait_for(all_told, "every lane says what is wrong")
    failed = second.log.count("retryapp.lane_failed")
    wait_for(lambda: second.log.count("retryapp.lane_failed") >= failed + len(reasons), "they go on failing")
    assert all_told()
    assert "open " not in last_errors(second, cut)
    wait_for(lambda: last_errors(second, lost).count("open ") == 2, "the others are open")
    assert second.get("/retries/ready")[0] == 503
    assert len(stage.service.visits) == delivered
    assert second.stop() == 0

    group.set(kept[cut] | kept[lost])
    stage.worker()
    for topic in (cut, lost):
        stage.produce(topic, [{"id": f"{topic}{n}"} for n in range(10, 14)])
    wait_for(lambda: len(stage.service.done(cut) | stage.service.done(lost)) == 24, "both go on")
    again = Counter(visit.facts["id"] for visit in stage.service.visits)
    assert (len(again), set(again.values())) == (28, {1}), "everything was delivered once"


@pytest.mark.timeout(120)
def test_a_partition_whose_records_retention_has_deleted_opens_again(stage: Stage) -> None:
    """A transaction marker lies behind the last copy; the group's offset passes it too, so nothing looks lost."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="200ms"), partitions=1)
    first = stage.worker()
    stage.produce(topic, [{"id": "hopeless", "fail": 9}], 1)
    evidence = stage.evidence(topic)
    wait_for(lambda: len(evidence.dead()) == 1, "it is dead")
    topology, admin = stage.topology(topic), KafkaAdmin(stage.connection)
    copies = (*topology.retry_topics, topology.redelivery)
    ends = {name: admin.offsets(name)[0].end for name in copies}
    assert min(ends.values()) >= 2, "a record and its marker"
    wait_for(
        lambda: all(evidence.committed(name)[0] == end for name, end in ends.items()),
        "the group is at the end of each",
        every_s=0.5,
    )
    assert first.stop() == 0
    group = Group(stage)
    for name in copies:
        group.delete_records(name, 0, -1)  # up to the end, as retention does once a segment is old
    assert all(admin.offsets(name)[0].begin == end for name, end in ends.items())
    stage.worker()
    stage.produce(topic, [{"id": "good", "fail": 1}], 1)
    wait_for(lambda: stage.service.done(topic) == {"good"}, "it works on")


@pytest.mark.timeout(120)
def test_records_that_are_deleted_under_an_open_lane_are_not_skipped_in_silence(stage: Stage) -> None:
    """The client library would go on behind them by itself; the lane closes instead and says what is gone."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="1h"), partitions=1)
    worker = stage.worker()
    group = Group(stage)
    worker.signal(signal.SIGSTOP)
    stage.produce(topic, [{"id": 0}], 1)  # answers the fetch that is on its way
    stage.produce(topic, [{"id": n} for n in range(1, 5)], 1)
    group.delete_records(topic, 0, 3)
    worker.signal(signal.SIGCONT)
    wait_for(lambda: "records were deleted unread" in last_errors(worker, topic), "the lane says what is gone")
    assert "where reading was to go on, is not on the topic any more" in worker.log
    assert {visit.facts["id"] for visit in stage.service.visits} <= {0}
    assert worker.stop() == 0

    group.set({(topic, 0): 3})
    stage.worker()
    wait_for(lambda: stage.service.done(topic) >= {3, 4}, "it goes on where it was told to")


@pytest.mark.timeout(120)
def test_a_pending_changelog_that_was_made_again(stage: Stage) -> None:
    """Nothing is delivered and the log says what to do; after that, all waits once more."""
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="15s"), partitions=2)
    topology = stage.topology(topic)
    group = Group(stage)
    worker = stage.worker()
    stage.produce(topic, [{"id": n, "fail": int(n in WAITING)} for n in sorted(WAITING | HEALTHY)])
    evidence = stage.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, len(WAITING)), "four wait")
    assert stage.service.done(topic) == HEALTHY
    assert worker.stop() == 0
    group.delete_topic(topology.pending_changelog)

    shut = stage.worker(ready=False)
    stage.produce(topic, [{"id": n} for n in sorted(LATER)])
    wait_for(lambda: shut.log.count("ChangelogReplacedError") >= 2, "both lanes say it")
    retry = topology.retry_topics[0]
    assert f"{topology.pending_changelog} was deleted and made again" in shut.log
    assert f"{retry} wait once more" in shut.log
    assert shut.get("/retries/ready")[0] == 503
    assert stage.service.done(topic) == HEALTHY
    assert shut.stop() == 0

    group.set({(retry, 0): 0, (retry, 1): 0})
    goes_on = stage.worker()
    wait_for(lambda: stage.service.done(topic) == HEALTHY | LATER | WAITING, "all is done", timeout_s=60)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 0), "nothing waits")
    assert "dropped and rebuilt: it is a copy of" in goes_on.log
    assert goes_on.stop() == 0

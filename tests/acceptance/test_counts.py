"""What workers say that they have counted covers every offset once, also where one of them was killed."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from harness import Evidence, HandlerSpec, Stage, wait_for

from retryapp.core.lifecycle import Progress, decode_event

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

PARTITIONS = 2


def ranges(evidence: Evidence) -> dict[int, list[Progress]]:
    """Return the visible `progress` events by partition, in order."""
    found: dict[int, list[Progress]] = {number: [] for number in range(PARTITIONS)}
    for record in evidence.records(evidence.topology.events):
        event = decode_event(record.value or b"")
        if isinstance(event, Progress):
            found[event.partition].append(event)
    return found


def beside(stage: Stage, evidence: Evidence) -> dict[int, str]:
    """Return the metadata of the group's offsets in the main topic.

    By aiokafka: the C library ends no metadata with a zero, and confluent-kafka reads on into what lies behind it.
    """

    async def ask() -> dict[int, str]:
        client = AIOKafkaAdminClient(bootstrap_servers=stage.bootstrap)
        await client.start()
        try:
            places = [TopicPartition(evidence.topology.main, number) for number in range(PARTITIONS)]
            found = await client.list_consumer_group_offsets(evidence.topology.group, partitions=places)
            return {place.partition: offset.metadata for place, offset in found.items()}
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_worker_that_is_killed_takes_no_count_along(stage: Stage, delivery: str) -> None:
    """Killed with -9 in mid-run, started again, and stopped: the events tell of every record, each in one range."""
    topic = stage.main_topic(partitions=PARTITIONS)
    stage.program(HandlerSpec(topic=topic, policy="300ms", concurrency=8), options={"delivery": delivery})
    evidence = stage.evidence(topic)
    worker = stage.worker("one")
    stage.produce(topic, [{"id": n, "fail": int(n % 4 == 0)} for n in range(200)], PARTITIONS)
    wait_for(lambda: sum(evidence.committed(topic).values()) > 60, "some are counted, and committed")
    worker.kill()
    assert all(not told for told in ranges(evidence).values()), "nobody has said anything yet"
    assert any(" p1:0-" in note for note in beside(stage, evidence).values()), "it stands beside the offsets"
    stage.produce(topic, [{"id": n, "fail": int(n % 4 == 0)} for n in range(200, 300)], PARTITIONS)
    worker = stage.worker("one")
    stage.wait_settled(topic)
    assert worker.stop() == 0
    check_ranges(evidence, topic)
    worker = stage.worker("one")
    stage.produce(topic, [{"id": n, "fail": 0} for n in range(300, 320)], PARTITIONS)
    stage.wait_settled(topic)
    assert worker.stop() == 0
    check_ranges(evidence, topic)


def check_ranges(evidence: Evidence, topic: str) -> None:
    """Compare what workers have said with the topics: every offset in one range, every record counted once."""
    records, retries = evidence.records(topic), evidence.retries()
    assert retries
    for number, told in ranges(evidence).items():
        offsets = [record.offset for record in records if record.partition == number]
        traced = {m.origin.offset for _, m in retries if m.origin.partition == number}
        starts, ends = [event.from_offset for event in told], [event.to_offset for event in told]
        assert starts == [0, *ends[:-1]], "each begins where the one before it ended"
        assert ends[-1] == offsets[-1] + 1 == evidence.committed(topic)[number]
        for event in told:
            inside = [offset for offset in offsets if event.from_offset <= offset < event.to_offset]
            assert event.received == len(inside)
            assert event.failed == len(traced.intersection(inside))
            assert event.first_try_ok == event.received - event.failed

"""What is due again comes back through the main topic, which other groups read, too."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from acceptance.books import by_record
from confluent_kafka import Producer
from harness import Answer, HandlerSpec, Stage, Visit, wait_for
from harness.operator import Operator

from retryapp.core.redelivery import RETRY_REDELIVERY
from retryapp.kafka import read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(150)]

RECORDS = 90
PARTITIONS = 2


def fails(every: int, times: int) -> Callable[[Visit], Answer]:
    """Refuse the first attempts of every so many records."""
    return lambda visit: Answer(503 if visit.facts["id"] % every == 0 and visit.attempt <= times else 200)


def test_groups_of_one_topic_do_not_see_each_others_retries(bootstrap: str, make_stage: Callable[[str], Stage]) -> None:
    """Two that send theirs through the topic, over a kill, and one that does not; each ledger adds up."""
    first, second, third = stages = [make_stage(bootstrap) for _ in range(3)]
    topic = first.main_topic(partitions=PARTITIONS)
    for stage, redelivery, times in zip(stages, ("main", "main", "direct"), (2, 1, 1), strict=True):
        stage.service.rule = fails(3 if stage is first else 5, times)
        stage.program(HandlerSpec(topic=topic, policy="500ms 1s", redelivery=redelivery))

    def copies() -> list[str]:
        found = [dict(record.headers).get(RETRY_REDELIVERY) for record in read_topic(first.connection, topic)]
        return [name.decode() for name in found if name]

    workers = [stage.worker() for stage in stages]
    first.produce(topic, [{"id": n} for n in range(RECORDS)], PARTITIONS)
    wait_for(lambda: sum(name.startswith(first.group) for name in copies()) > 10, "some are on their way back")
    workers[0].kill()
    first.worker("next")
    for stage in stages:
        stage.wait_settled(topic)

    published = Counter(copies())
    assert set(published.values()) == {1}, "a delivery has one copy, over the kill too"
    for stage, every, times in ((first, 3, 2), (second, 5, 1), (third, 5, 1)):
        attempts: defaultdict[int, set[int]] = defaultdict(set)
        for visit in stage.service.of(topic):
            assert visit.failure_id.startswith(f"{stage.group}/")
            assert RETRY_REDELIVERY not in dict(visit.headers)
            attempts[visit.facts["id"]].add(visit.attempt)
        expected = {n: set(range(1, 2 + times * (n % every == 0))) for n in range(RECORDS)}
        assert attempts == expected
        again = sum(len(each) - 1 for each in expected.values()) if stage is not third else 0
        assert sum(name.startswith(stage.group) for name in published) == again
        total = stage.evidence(topic).balance()
        assert (total.received, total.done, total.copies) == (RECORDS, RECORDS, len(published))


def test_what_the_topic_may_not_take_again_comes_at_once(stage: Stage) -> None:
    """A record that fits, and whose copy would not; a burst of others is cut into batches that fit."""
    topic = stage.main_topic(partitions=1)
    Operator(stage.bootstrap).configure(topic, "max.message.bytes", "20000")
    stage.program(HandlerSpec(topic=topic, policy="1s", redelivery="main"))
    worker = stage.worker()
    sizes = [19_850 if n % 10 == 0 else 6_000 for n in range(50)]
    facts = [{"id": n, "fail": 1, "blob": os.urandom(size // 2).hex()} for n, size in enumerate(sizes)]
    producer = Producer({"bootstrap.servers": stage.bootstrap, "acks": "all", "batch.num.messages": 1})
    for fact in facts:
        producer.produce(topic, json.dumps(fact).encode(), key=b"k", partition=0)
    assert producer.flush(20) == 0
    stage.wait_settled(topic)
    found = [dict(record.headers).get(RETRY_REDELIVERY) for record in read_topic(stage.connection, topic)]
    assert sum(name is not None for name in found) == 45
    assert {len(at) for at in by_record(stage.service.of(topic)).values()} == {2}
    assert "retryapp.hand_off_refused" not in worker.log
    assert "retryapp.lane_failed" not in worker.log

"""What handlers publish: there once, whatever dies, and a topic that is deleted under an open lane."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from acceptance.books import results
from aiokafka.partitioner import DefaultPartitioner
from harness import HandlerSpec, Stage, wait_for
from harness.operator import Operator

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

POLICY = "200ms 400ms"
PARTITIONS = 3
ROUND = 12
"""Records published before each life: a quarter each fails never, once, twice, always."""
STEPS = (
    ("Producer.commit_transaction", "before", 1),
    ("Producer.commit_transaction", "during", 0),
    ("Producer.send_batch", "after", 1),
    ("Producer.send_offsets_to_transaction", "after", 0),
    ("Producer.commit_transaction", "after", 0),
    ("KafkaTransport.apply", "before", 1),
)
"""Where a worker ends itself with SIGKILL, holding results: call, moment, and how many calls go well before."""


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "steps", [pytest.param(STEPS[:2], id="commit"), pytest.param(STEPS, id="all", marks=pytest.mark.extended)]
)
def test_each_result_is_there_once_whatever_dies(stage: Stage, steps: tuple[tuple[str, str, int], ...]) -> None:
    """Workers die at steps of a transaction; the result is that of the attempt which was fine."""
    topic, out = stage.main_topic(), stage.main_topic("payments", PARTITIONS)
    handler = HandlerSpec(topic=topic, policy=POLICY, publishes=out, max_crashes=len(steps) + 1)  # none is to blame
    sent = 0
    for point, moment, after in steps:
        crash = {"point": point, "moment": moment, "holding": out, "after": after}
        stage.program(handler, crash=crash)
        sent += stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(sent, sent + ROUND)])
        worker = stage.worker(f"life{len(stage.workers)}", ready=False)
        assert worker.wait(30) == -signal.SIGKILL, worker.log[-3000:]
        assert f"crash: {crash}" in worker.log
    stage.program(handler)
    sent += stage.produce(topic, [{"id": i, "fail": i % 4} for i in range(sent, sent + 5 * ROUND)])
    stage.worker("last")
    stage.wait_settled(topic)
    records, found = zip(*results(stage, out), strict=True)
    places = list(range(PARTITIONS))
    assert all(record.partition == DefaultPartitioner()(record.key, places, []) for record in records), "by their keys"
    expected = Counter((i, i % 4 + 1) for i in range(sent) if i % 4 < 3)
    assert Counter((result["id"], result["attempt"]) for result in found) == expected
    assert len({result["idempotency_key"] for result in found}) == len(found)
    assert stage.service.done(topic) == {i for i in range(sent) if i % 4 < 3}


@pytest.mark.extended
@pytest.mark.timeout(150)
def test_a_topic_that_is_deleted_under_an_open_lane_stops_it_once(stage: Stage) -> None:
    """Its transaction cannot end; then handlers get an error, and what does not publish there goes on."""
    topic, out = stage.main_topic(partitions=1), stage.main_topic("payments", PARTITIONS)
    gone = stage.main_topic("gone", PARTITIONS)
    stage.program(HandlerSpec(topic=topic, policy="1d", publishes=out))
    worker = stage.worker()
    stage.produce(topic, [{"id": 0, "to": gone}], 1)
    wait_for(lambda: results(stage, gone), "it publishes")
    Operator(stage.bootstrap).delete_topic(gone)
    stage.produce(topic, [{"id": 1, "to": gone}, {"id": 2}], 1)
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 1, "its record waits", timeout_s=90)
    wait_for(lambda: [result["id"] for _, result in results(stage, out)] == [2], "the other is published")
    assert worker.log.count("retryapp.lane_failed") == 1
    ((_, metadata),) = evidence.retries()
    assert "no such topic" in metadata.error_message

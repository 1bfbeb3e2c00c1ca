"""A topic of ours that refuses one hand-off: the others go on, nothing runs again, and what is said can be acted on."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import Any

import pytest
from harness import HandlerSpec, Stage, wait_for
from harness.operator import Operator

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

LIMIT, PARTITIONS = 2_000, 1


def test_a_dead_letter_that_is_too_large_for_its_topic_waits_alone(stage: Stage) -> None:
    """What is before it is committed, what is after it runs once; when the limit is raised it is a dead letter."""
    topic = stage.main_topic(partitions=PARTITIONS)
    stage.program(HandlerSpec(topic=topic, policy="500ms"), partitions=PARTITIONS)
    worker, evidence = stage.worker(), stage.evidence(topic)
    dlq, operator = stage.topology(topic).dlq, Operator(stage.bootstrap)
    stage.produce(topic, [{"id": "first"}], PARTITIONS)
    wait_for(lambda: evidence.unsettled() == 0, "the first is settled")
    operator.configure(dlq, "max.message.bytes", str(LIMIT))
    bad = {"id": "bad", "reject": 1, "filling": os.urandom(4 * LIMIT).hex()}
    stage.produce(topic, [{"id": n, "fail": n % 2} for n in range(10)], PARTITIONS)
    stage.produce(topic, [bad, *({"id": n} for n in range(10, 20))], PARTITIONS)
    wait_for(lambda: "retryapp.hand_off_refused" in worker.log, "it is said")
    wait_for(lambda: len(evidence.succeeded()) == 5, "those that waited for a retry are done")
    time.sleep(6)  # several tries, and longer than the 5 s after which a lane used to open again
    runs = Counter((visit.facts["id"], visit.attempt) for visit in stage.service.of(topic))
    assert set(runs.values()) == {1}, "nothing runs again"
    assert len(runs) == 1 + 10 + 5 + 1 + 10
    assert evidence.committed(topic) == {0: 11}
    status, text = worker.get("/retries/ready")
    assert status == 503
    assert f"{dlq} refuses a hand-off: MessageSizeTooLargeError" in text
    (line,) = [line for line in worker.log.splitlines() if "retryapp.hand_off_refused" in line]
    assert f"the topic at most {LIMIT} (max.message.bytes)" in line
    assert "offset=11" in line
    operator.configure(dlq, "max.message.bytes", "1114124")
    wait_for(lambda: [value["id"] for value in _dead(stage, topic)] == ["bad"], "it is a dead letter")
    stage.wait_settled(topic)
    assert worker.get("/retries/ready")[0] == 200
    assert set(Counter((visit.facts["id"], visit.attempt) for visit in stage.service.of(topic)).values()) == {1}
    assert worker.log.count("retryapp.hand_off_accepted") == 1
    assert "retryapp.lane_failed" not in worker.log
    assert worker.stop() == 0


def _dead(stage: Stage, topic: str) -> list[Any]:
    return [json.loads(record.value or b"") for record, _ in stage.evidence(topic).dead()]

"""A main topic that grows under a running worker."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]


def test_a_main_topic_that_grows_is_told_and_the_rest_goes_on(stage: Stage) -> None:
    """Our topics have no such partition: its records wait, and the log says what to do."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="200ms"), app_options={"consumer_metadata_max_age_ms": 500})
    worker = stage.worker()
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    wait_for(lambda: "retryapp.lane_incomplete" in worker.log, "the worker says so")
    line = next(line for line in worker.log.splitlines() if "retryapp.lane_incomplete" in line)
    assert "partition=2" in line
    assert "the main topic has grown" in line
    worker.wait_ready()
    stage.produce(topic, [{"id": n, "fail": n % 2} for n in range(12)], partitions=3)
    wait_for(lambda: len(stage.service.done(topic)) == 8, "the partitions of before go on")
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.unsettled() == 4, "those of the new one wait")
    assert {n % 3 for n in stage.service.done(topic)} == {0, 2}

"""A main topic grows under running workers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from harness import Answer, HandlerSpec, Stage, Worker, wait_for
from harness.service import fail_first
from harness.terminal import begin, retryapp

from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

NOTICED_S = 30


def all_series(workers: Iterable[Worker], metric: str) -> list[float]:
    return [value for worker in workers for value in worker.series(metric).values()]


def test_partitions_added_to_the_main_topic_are_missed_until_ours_have_them_and_lose_nothing(stage: Stage) -> None:
    """No worker is ready, the alert's metrics differ; the named command opens them without a restart."""
    main = stage.main_topic()
    stage.service.rule = fail_first
    stage.program(
        HandlerSpec(topic=main, tiers="per-delay"),
        app_options={"consumer_auto_offset_reset": "latest"},
    )
    workers = [stage.worker(), stage.worker()]
    stage.produce(main, [{"id": f"a{n}", "fail": n % 2} for n in range(8)])
    wait_for(lambda: len({v.facts["id"] for v in stage.service.of(main)}) == 8, "the first records are handled")

    user = AdminClient({"bootstrap.servers": stage.bootstrap})
    user.create_partitions([NewPartitions(main, 5)])[main].result(10)
    began_s = time.monotonic()
    for worker in workers:
        wait_for(lambda w=worker: w.get("/retries/ready")[0] == 503, "unready", timeout_s=NOTICED_S)
    assert time.monotonic() - began_s < NOTICED_S
    wait_for(lambda: all_series(workers, "retryapp_partitions") == [5, 5], "all partitions count")
    stage.produce(main, [{"id": f"b{n}", "fail": n % 2} for n in range(20)], partitions=5)
    old = {f"b{n}" for n in range(20) if (n + 1) % 5 < 2}
    wait_for(lambda: old <= {v.facts["id"] for v in stage.service.of(main)}, "partitions that were open stay open")
    assert all(worker.get("/retries/ready")[0] == 503 for worker in workers)
    logs = [worker.log_file.read_text() for worker in workers]
    for log in logs:
        (line,) = [line for line in log.splitlines() if "retryapp.lane_incomplete" in line]
        assert all(topic in line for topic in stage.topology(main).owned)
    assert "retryapp topics grow -A" in logs[0]

    grow = stage.start("grow", [sys.executable, "-m", "retryapp.cli.main", "topics", "grow", "-A", "app", "--json"])
    wait_for(grow.ended, "the command ends")
    assert grow.exit_code == 0
    wait_for(
        lambda: sum(all_series(workers, "retryapp_lanes_open")) == 5, "all lanes are open", timeout_s=NOTICED_S + 15
    )
    for worker in workers:
        worker.wait_ready()
    wait_for(
        lambda: {f"b{n}" for n in range(20)} <= {v.facts["id"] for v in stage.service.of(main)}, "nothing is skipped"
    )
    stage.wait_settled(main)
    assert workers[0].stop() == 0
    stage.worker("again")


def test_topics_of_a_handler_with_an_order_grow_once_earlier_records_have_ended(stage: Stage) -> None:
    """Its keys move: none passes a record that waits on another partition, unless somebody forces it."""
    main, down = stage.main_topic(), {"a"}
    stage.service.rule = lambda visit: Answer(503 if visit.facts["id"][0] in down else 200)
    stage.program(HandlerSpec(topic=main, policy="forever(500ms)", order="key"))
    stage.worker()
    user = AdminClient({"bootstrap.servers": stage.bootstrap})
    evidence = stage.evidence(main)

    def add(key: str, partitions: int) -> None:
        """Have a key's records wait, and the newest of it go to a partition that is added."""
        stage.produce(main, [{"id": f"{key}{n}", "key": key} for n in (0, 1)], 1)
        wait_for(lambda: evidence.waiting() == 2, "one waits, the other behind it")
        user.create_partitions([NewPartitions(main, partitions)])[main].result(10)
        KafkaAdmin(stage.connection).wait_for_topics([main], {main: partitions})
        producer = stage.producer()
        producer.produce(main, json.dumps({"id": f"{key}2", "key": key}), key=key, partition=partitions - 1)
        assert producer.flush(20) == 0

    def begun(key: str) -> list[str]:
        return list(dict.fromkeys(v.facts["id"] for v in stage.service.of(main) if v.facts["id"][0] == key))

    add("a", 4)
    code, said = retryapp(stage, "topics", "grow", "-A", "app", "--wait", "1ms")
    assert (code, said) == (1, {"grown": [], "left": [{"main": main, "unread": 0, "waiting": 2}]})
    with begin(stage, "topics", "grow", "-A", "app", "--wait", "2m") as waiting:
        assert waiting.stderr is not None
        assert "2 waiting records have to end first" in waiting.stderr.readline()
        assert begun("a") == ["a0"]
        down.clear()
        assert waiting.wait(60) == 0
    wait_for(lambda: begun("a") == ["a0", "a1", "a2"], "in their order", timeout_s=NOTICED_S + 15)
    stage.wait_settled(main)

    down.add("b")
    add("b", 6)
    code, said = retryapp(stage, "topics", "grow", "-A", "app", "--force")
    assert (code, len(said["grown"])) == (0, len(stage.topology(main).owned))
    wait_for(lambda: begun("b") == ["b0", "b2"], "the order is lost", timeout_s=NOTICED_S + 15)
    down.clear()
    stage.wait_settled(main)

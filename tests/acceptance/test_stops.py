"""A sequence stops behind its dead record, on a real broker, over a kill, until somebody decides."""

from __future__ import annotations

import json
import time

import pytest
from harness import Answer, HandlerSpec, Stage, wait_for
from harness.operator import Operator
from harness.terminal import retryapp

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(240)]


def test_a_sequence_stops_behind_a_dead_record_over_a_kill_until_it_is_released(stage: Stage) -> None:
    """Other keys go on. A replay goes first; a release lets those behind go on without it. The ledger adds up."""
    topic, mended = stage.main_topic(partitions=1), set[int]()
    stage.service.rule = lambda visit: Answer(503 if visit.facts["id"] in {0, 1} - mended else 200)
    stage.program(HandlerSpec(topic=topic, policy="100ms", order="key", on_dead="hold"))
    stage.produce(topic, [{"id": n, "key": f"k{n % 3}"} for n in range(12)], 1)
    worker, evidence, letters = stage.worker("killed"), stage.evidence(topic), stage.topology(topic).dlq

    def seen(key: int) -> list[int]:
        return [visit.facts["id"] for visit in stage.service.of(topic) if visit.facts["id"] % 3 == key]

    wait_for(lambda: len(evidence.records(letters)) == 2, "two have stopped")
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 8), "three wait behind each")
    worker.kill()
    worker = stage.worker("second")
    stage.produce(topic, [{"id": 12, "key": "k0"}, {"id": 14, "key": "k2"}], 1)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 9), "one more waits")
    assert (seen(0), seen(1), seen(2)) == ([0, 0], [1, 1], [2, 5, 8, 11, 14])
    records = retryapp(stage, "pending", "list", "-A", "app")[1]["records"]
    assert [record["held_by"] for record in records] == ["stopped"] * 2 + ["sequence"] * 7
    names = {record["origin_offset"]: record["failure_id"] for record in records[:2]}
    assert sorted(names) == [0, 1]
    total = evidence.balance()
    assert (total.done, total.dead, total.held) == (5, 2, 7)
    (todo,) = [each for each in json.loads(worker.get("/retries/?format=json")[1])["todo"] if "stopped" in each["text"]]
    assert todo["text"].startswith("2 sequences have stopped")
    assert json.loads(worker.get(f"{todo['path']}&format=json")[1])["records"][0]["held_by"] == "stopped"

    mended.add(0)
    assert retryapp(stage, "dead", "replay", "--broker", stage.bootstrap, names[0])[0] == 0
    wait_for(lambda: seen(0) == [0, 0, 0, 3, 6, 9, 12], "the replayed one goes first, then the others in order")
    assert worker.post(f"/retries/{topic}/command", {"verb": "release", "failure_id": names[1]})[1]["refused"] is None
    wait_for(lambda: seen(1) == [1, 1, 4, 7, 10], "the others go on without it")
    total = stage.wait_settled(topic)
    assert (total.received, total.done, total.dead) == (14, 13, 1)


def test_records_that_a_stop_keeps_unread_until_they_are_deleted_are_announced(stage: Stage) -> None:
    """A stopped partition leaves them on the main topic, which deletes them; a letter that is set aside ends that."""
    topic, operator = stage.main_topic(partitions=1), Operator(stage.bootstrap)
    operator.configure(topic, "retention.ms", str(20 * 3_600_000))
    stage.service.rule = lambda visit: Answer(422 if visit.facts["id"] == 0 else 200)
    stage.program(HandlerSpec(topic=topic, order="partition", on_dead="hold"))
    worker, evidence, letters = stage.worker(), stage.evidence(topic), stage.topology(topic).dlq
    old_ms = time.time_ns() // 1_000_000 - 11 * 3_600_000
    operator.publish(topic, *(json.dumps({"id": n}).encode() for n in range(3)), key=b"k", timestamp=old_ms)
    wait_for(lambda: len(evidence.records(letters)) == 1, "it has stopped")

    def expiring() -> bool:
        return worker.series("retryapp_unread_expiring_partitions") == {f'handler="{topic}"': 1}

    wait_for(expiring, "the metric says so")
    found = {each["name"]: each for each in retryapp(stage, "doctor", "-A", "app")[1]["findings"]}
    assert found[f"unread records of {topic}"]["severity"] == "problem"
    (letter,) = retryapp(stage, "dead", "list", "-A", "app", "--topic", topic)[1]["records"]
    assert retryapp(stage, "dead", "discard", "--broker", stage.bootstrap, letter["failure_id"])[0] == 0
    stage.wait_settled(topic)
    wait_for(lambda: not expiring(), "it is over")

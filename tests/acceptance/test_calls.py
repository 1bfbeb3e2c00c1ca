"""How handlers are called: tries in place, and lists of records."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from acceptance.books import results
from harness import HandlerSpec, Stage, Visit
from harness.service import Answer

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]


def fail_tries(visit: Visit) -> Answer:
    """Refuse so many tries of each attempt, and so many attempts, as the value says."""
    tries, attempts = visit.facts.get("tries", 0), visit.facts.get("fail", 0)
    return Answer(503 if visit.hot_attempt <= tries or visit.attempt <= attempts else 200)


def test_a_delivery_tries_again_in_place(stage: Stage) -> None:
    """What its last try has published is there, once; a failure that stays waits, and says how many tries it took."""
    stage.service.rule = fail_tries
    topic, out = stage.main_topic(), stage.main_topic("receipts")
    stage.program(HandlerSpec(topic=topic, policy="300ms", hot="20ms*2", publishes=out))
    stage.worker()
    stage.produce(
        topic, [{"id": 0}, {"id": 1, "tries": 1}, {"id": 2, "tries": 2}, {"id": 3, "fail": 1}, {"id": 4, "fail": 9}]
    )
    stage.wait_settled(topic)
    calls: dict[int, list[tuple[int, int]]] = {}
    for visit in stage.service.of(topic):
        calls.setdefault(visit.facts["id"], []).append((visit.attempt, visit.hot_attempt))
    thrice = [(1, 1), (1, 2), (1, 3)]
    assert calls == {
        0: thrice[:1], 1: thrice[:2], 2: thrice, 3: [*thrice, (2, 1)], 4: [*thrice, (2, 1), (2, 2), (2, 3)],
    }  # fmt: skip
    assert sorted(result["id"] for _, result in results(stage, out)) == [0, 1, 2, 3]
    evidence = stage.evidence(topic)
    assert [metadata.hot_attempts for _, metadata in evidence.retries()] == [3, 3]
    assert [(metadata.attempt, metadata.hot_attempts) for _, metadata in evidence.dead()] == [(2, 3)]


def test_each_record_of_a_list_has_its_own_fate(stage: Stage) -> None:
    """What fails waits or is dead, alone; what raises for its whole list is found; the others are done, once."""
    topic, out = stage.main_topic(), stage.main_topic("receipts")
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms", batch=20, publishes=out, max_crashes=9))
    facts = [{"id": n, "fail": (0, 0, 1, 9)[n % 4]} for n in range(40)] + [{"id": 40, "fail": 9, "poison": True}]
    stage.produce(topic, facts)
    worker = stage.worker()
    stage.wait_settled(topic)
    fine = {fact["id"]: 1 + fact["fail"] for fact in facts if fact["fail"] < 9}
    assert sorted((result["id"], result["attempt"]) for _, result in results(stage, out)) == sorted(fine.items())
    evidence = stage.evidence(topic)
    dead = {json.loads(record.value or b"")["id"]: metadata for record, metadata in evidence.dead()}
    assert {number: metadata.attempt for number, metadata in dead.items()} == dict.fromkeys([*range(3, 40, 4), 40], 3)
    calls = [(visit.facts["id"], visit.attempt, visit.hot_attempt) for visit in stage.service.of(topic)]
    assert len(set(calls)) == len(calls), "no try was repeated"
    assert {id_ for id_, attempt, _ in calls if attempt == 2} == {fact["id"] for fact in facts if fact["fail"]}
    assert not stage.evidence(topic).repeated_handoffs()
    assert worker.stop() == 0


@pytest.mark.extended
@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [{"batch": 10}, {"hot": "20ms*2"}], ids=["lists", "tries"])
def test_each_result_is_there_once_when_a_worker_dies_at_its_commit(stage: Stage, options: dict[str, Any]) -> None:
    """The next worker calls again what has no durable outcome; no attempt is skipped or spent twice."""
    topic, out = stage.main_topic(), stage.main_topic("receipts")
    handler = HandlerSpec(topic=topic, publishes=out, max_crashes=9, **options)
    sent = 0
    for moment in ("before", "during", "after"):
        crash = {"point": "Producer.commit_transaction", "moment": moment, "holding": out, "after": 0}
        stage.program(handler, crash=crash)
        sent += stage.produce(topic, [{"id": n, "fail": n % 4} for n in range(sent, sent + 20)])
        assert stage.worker(ready=False).wait(40) == -signal.SIGKILL
    stage.program(handler)
    stage.worker()
    stage.wait_settled(topic)
    expected = [(n, n % 4 + 1) for n in range(sent) if n % 4 < 3]
    assert sorted((result["id"], result["attempt"]) for _, result in results(stage, out)) == expected
    assert len(stage.evidence(topic).dead()) == sent // 4

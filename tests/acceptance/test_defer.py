"""Records that wait for an event outside, on a real broker: released by their tokens, early or late, over a kill."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from harness import Answer, HandlerSpec, Stage, wait_for
from harness.service import Gate
from harness.terminal import retryapp

from retryapp.core.control import token_of

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(240)]

PROGRAM = '''
from retryapp import Defer


@retries.handler(SPEC["transfers"], value=dict, policy="100ms*3", concurrency=4)
async def transfer(order: dict, delivery: Delivery) -> None:
    """Ask the bank, which calls back."""
    await call_service(SPEC["transfers"], _facts(delivery))
    if delivery.attempt == 1 and not delivery.released:
        raise Defer(deadline="3s" if order["id"] == 3 else "1h", text="the bank calls back")
'''


def test_a_token_releases_its_record_however_early_and_over_a_kill(stage: Stage) -> None:
    """Early while its delivery goes on and its worker is killed; late by terminal and HTTP; one waits for nothing."""
    topic, gate = stage.main_topic("transfers"), Gate()
    stage.program(code=PROGRAM, transfers=topic)
    stage.handlers = {topic: HandlerSpec(topic=topic)}
    stage.service.rule = lambda visit: Answer(gate=gate if visit.facts["id"] == 0 else None)
    first = stage.worker("killed")
    stage.produce(topic, [{"id": n} for n in range(4)])
    evidence = stage.evidence(topic)
    wait_for(lambda: len(stage.service.visits) >= 4 and evidence.waiting() >= 2, "three are put off", timeout_s=60)
    names = {visit.facts["id"]: visit.failure_id for visit in stage.service.visits}
    place = ("--broker", stage.bootstrap)
    code, said = retryapp(stage, "pending", "release", *place, token_of(names[0], 1), "--by", "bank")
    assert (code, said["outcomes"][0]["after"]) == (0, "released")
    first.kill()
    late = threading.Timer(2.0, gate.open)
    late.start()
    worker = stage.worker("second", env={"RETRYAPP_WEB_OPERATORS": "local"})
    wait_for(lambda: evidence.waiting() == 2, "the first is done, and the last one at its deadline", timeout_s=60)
    listed = retryapp(stage, "pending", "list", "-A", "app")[1]["records"]
    assert {(each["failure_id"], each["held_by"], each["tier"]) for each in listed} == {
        (names[number], "token", "deferred") for number in (1, 2)
    }
    total = evidence.balance()
    assert (total.done, total.on_hold) == (2, 2)
    assert retryapp(stage, "pending", "release", *place, token_of(names[1], 1))[0] == 0
    asked = {"verb": "release", "failure_id": token_of(names[2], 1)}
    assert worker.post(f"/retries/{topic}/command", asked)[1]["outcome"] == "done"
    assert worker.post(f"/retries/{topic}/command", asked)[1]["refused"] == "too-late"
    wait_for(lambda: evidence.waiting() == 0, "all are done", timeout_s=60)
    assert evidence.balance().done == 4
    attempts = Counter((visit.facts["id"], visit.attempt) for visit in stage.service.visits)
    assert {number for number, attempt in attempts if attempt > 1} == {3}
    assert all(attempts[number, 1] == 2 for number in (1, 2))
    assert worker.stop() == 0

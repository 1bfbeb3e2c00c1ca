"""Records that end their worker each time that they run, on a real broker: they end, nothing else does (rule 15)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(400)]

COUNT = 24
MOST_LIVES = 20
FIRST, LATER = 6, 14
"""Ids of the two that kill: one at its first attempt, one at its second."""


def facts(i: int) -> dict[str, int]:
    """Return what a record says: every third one fails once."""
    fails = 1 if i % 3 == 2 else 0
    return {"id": i, "fail": fails, **({"kills": 1 if i == FIRST else 2} if i in (FIRST, LATER) else {})}


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_record_that_kills_its_worker_ends(bootstrap: str, make_stage: Callable[[str], Stage], delivery: str) -> None:
    """After a few lives it is dead, with how it came to that; all others are done."""
    stage = make_stage(bootstrap)
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="200ms 400ms", concurrency=4), options={"delivery": delivery})
    stage.produce(topic, [facts(i) for i in range(COUNT)])
    killed = 0
    for life in range(MOST_LIVES):
        worker = stage.worker(f"life{life}", ready=False)
        evidence = stage.evidence(topic)
        if life == 0:
            wait_for(worker.ended, "the first life is killed", timeout_s=60, every_s=0.3)
        wait_for(
            lambda worker=worker, evidence=evidence: (
                worker.ended() or (len(evidence.dead()), evidence.unsettled()) == (2, 0)
            ),
            "the worker is killed, or all is done",
            timeout_s=60,
            every_s=0.3,
        )
        if not worker.ended():
            break
        assert worker.wait(5) == -signal.SIGKILL, worker.log[-3000:]
        killed += 1
    stage.wait_settled(topic)
    visits = stage.service.of(topic)
    ids = {visit.failure_id: visit.facts["id"] for visit in visits}
    dead = {ids[m.failure_id]: m for _, m in stage.evidence(topic).dead()}
    assert {(i, m.reason, m.attempt) for i, m in dead.items()} == {(FIRST, "crashed", 1), (LATER, "crashed", 2)}
    assert all(m.error_type.endswith("WorkerCrashedError") for m in dead.values())
    assert "3 workers ended while this record ran alone" in dead[FIRST].error_message
    assert stage.service.done(topic) >= set(range(COUNT)) - {FIRST, LATER}
    assert 5 <= killed < MOST_LIVES

"""Records that end their worker each time that they run: they end as dead letters, and nothing else does."""

from __future__ import annotations

import signal

import pytest
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

COUNT = 24
MOST_LIVES = 20
FIRST, LATER = 6, 14
"""Ids of the two that kill: one at its first attempt, one at its second."""


@pytest.mark.parametrize(
    ("kills", "max_crashes"),
    [
        pytest.param({FIRST: 1}, 1, id="a first delivery", marks=pytest.mark.timeout(150)),
        pytest.param({LATER: 2}, 1, id="a row", marks=pytest.mark.timeout(150)),
        pytest.param({FIRST: 1, LATER: 2}, 3, id="two", marks=[pytest.mark.extended, pytest.mark.timeout(400)]),
    ],
)
def test_a_record_that_kills_its_worker_ends(stage: Stage, kills: dict[int, int], max_crashes: int) -> None:
    """After a few lives it is dead, with the reason in its error; all others are done."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="200ms 400ms", concurrency=4, max_crashes=max_crashes))
    facts = [{"id": i, "fail": int(i % 3 == 2)} for i in range(COUNT)]
    stage.produce(topic, [{**fact, "kills": kills[fact["id"]]} if fact["id"] in kills else fact for fact in facts])
    evidence = stage.evidence(topic)
    for killed in range(MOST_LIVES):
        worker = stage.worker(f"life{killed}", ready=False)
        if killed == 0:
            wait_for(worker.ended, "the first life is killed", timeout_s=60)
        wait_for(
            lambda worker=worker: (  # type: ignore[misc]
                worker.ended() or (len(evidence.dead()), evidence.unsettled()) == (len(kills), 0)
            ),
            "the worker is killed, or all is done",
            timeout_s=60,
            every_s=0.3,
        )
        if not worker.ended():
            break
        assert worker.wait(20) == -signal.SIGKILL, worker.log[-3000:]
    assert 2 + max_crashes <= killed < MOST_LIVES
    stage.wait_settled(topic)
    ids = {visit.failure_id: visit.facts["id"] for visit in stage.service.of(topic)}
    dead = {ids[m.failure_id]: m for _, m in evidence.dead()}
    assert {i: (m.reason, m.attempt) for i, m in dead.items()} == {i: ("crashed", n) for i, n in kills.items()}
    assert all(m.error_type.endswith("WorkerCrashedError") for m in dead.values())
    assert all(f"{max_crashes} worker" in m.error_message for m in dead.values())
    assert stage.service.done(topic) >= set(range(COUNT)) - set(kills)

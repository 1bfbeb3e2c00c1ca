"""Records that end their worker each time that they run: they end as dead letters, nothing else does, and soon."""

from __future__ import annotations

import re
import signal
from collections import Counter

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, wait_for
from harness.service import fail_first
from harness.stage import PARTITIONS

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

COUNT = 24
FIRST, LATER = 6, 14
"""Ids of the two that kill: one at its first attempt, one at its second."""


@pytest.mark.parametrize(
    ("kills", "max_crashes"),
    [
        pytest.param({FIRST: 1}, 1, id="a first delivery", marks=pytest.mark.timeout(150)),
        pytest.param({LATER: 2}, 1, id="a row", marks=[pytest.mark.extended, pytest.mark.timeout(150)]),
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
    # of each: one life without a mark, two that make suspect, those that halve a partition's records, and alone
    most_lives = len(kills) * (1 + 2 + (COUNT // PARTITIONS - 1).bit_length() + max_crashes)
    for killed in range(most_lives + 1):
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
    assert 2 + max_crashes <= killed <= most_lives
    stage.wait_settled(topic)
    ids = {visit.failure_id: visit.facts["id"] for visit in stage.service.of(topic)}
    dead = {ids[m.failure_id]: m for _, m in evidence.dead()}
    assert {i: (m.reason, m.attempt) for i, m in dead.items()} == {i: ("crashed", n) for i, n in kills.items()}
    assert all(m.error_type.endswith("WorkerCrashedError") for m in dead.values())
    assert all(f"{max_crashes} worker" in m.error_message for m in dead.values())
    assert stage.service.done(topic) >= set(range(COUNT)) - set(kills)


@pytest.mark.timeout(150)
def test_a_false_suspicion_costs_two_group_times(stage: Stage) -> None:
    """Two kills from outside: what was in flight runs in two groups, with the usual concurrency, and all is done."""
    count, concurrency = 200, 16
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, concurrency=concurrency))
    stage.service.rule = lambda _visit: Answer(after_s=0.2)
    stage.produce(topic, [{"id": n} for n in range(count)], 1)
    evidence = stage.evidence(topic)
    for life in range(2):
        worker = stage.worker(f"killed{life}", ready=False)
        wait_for(lambda pid=worker.pid: running(stage, pid) >= concurrency, "records are in flight", timeout_s=60)  # type: ignore[misc]
        worker.kill()
    began = len(stage.service.visits)
    gate = Gate()
    stage.service.rule = lambda _visit: Answer(gate=gate)
    worker = stage.worker("outlives", ready=False)
    wait_for(lambda: running(stage, worker.pid) == concurrency, "so many suspects run at the same time", timeout_s=60)
    named = re.match(r"m:\S+ g(\d+):[^@]+@(\d+)-(\d+)<", evidence.note(topic))
    assert named is not None, evidence.note(topic)
    size, first, end = map(int, named.groups())
    assert (size, end - first) == ((count - first + 1) // 2, size), "half of what may have been running"
    stage.service.rule = fail_first
    gate.open()
    stage.wait_settled(topic)
    assert stage.service.done(topic) == set(range(count))
    visits = Counter(visit.facts["id"] for visit in stage.service.visits[began:])
    assert set(visits.values()) == {1}, "nothing ran twice in the life that lasted"
    assert not evidence.dead()


def running(stage: Stage, pid: int) -> int:
    """Return how many deliveries of a process were not answered yet."""
    return sum(visit.pid == pid and visit.number not in stage.service.finished for visit in list(stage.service.visits))

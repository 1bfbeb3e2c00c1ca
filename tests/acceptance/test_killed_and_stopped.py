"""Workers that are killed and stopped, that join and leave: nothing lost, nothing early, nothing handed on twice."""

from __future__ import annotations

import signal
from collections import defaultdict

import pytest
from harness import Answer, Evidence, Gate, HandlerSpec, Stage, Visit, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

POLICY = "300ms 500ms 700ms"
POLICY_MS = (300, 500, 700)


def check_books(stage: Stage, topic: str, count: int, *, copies: bool = False) -> None:
    """Compare what the service saw with what the topics say: every record has one fate, none too early, none twice.

    Args:
        stage: where it ran; everything must be settled.
        topic: the main topic; values have `id` from 0 and `fail`, the number of attempts that fail (4: all).
        count: how many records there are.
        copies: whether a crash may have repeated hand-offs (the mode without transactions).
    """
    evidence = stage.evidence(topic)
    visits = stage.service.of(topic)
    letters = [m.failure_id for _, m in evidence.dead()]
    dead = list(set(letters)) if copies else letters
    failure_ids = {visit.facts["id"]: visit.failure_id for visit in visits}
    done = stage.service.done(topic)
    assert set(failure_ids) == set(range(count)), "every record was delivered"
    hopeless = {visit.facts["id"] for visit in visits if visit.facts["fail"] > len(POLICY_MS)}
    assert done == set(range(count)) - hopeless, "all that can be done is done"
    assert sorted(dead) == sorted(failure_ids[n] for n in hopeless), "all that cannot is dead, once"
    repeated = evidence.repeated_handoffs()
    assert copies or repeated == {}
    print(f"hand-offs that a committed reader sees more than once: {len(repeated)}")  # noqa: T201 - for the report
    check_times(evidence, visits)
    recovered = {v.failure_id for v in visits if v.facts["fail"] and v.facts["id"] in done}
    assert {event.failure_id for event in evidence.succeeded()} == recovered


def check_times(evidence: Evidence, visits: list[Visit]) -> None:
    """No attempt begins before it is due, and the recorded wait is the policy's."""
    for _, m in evidence.retries():
        assert (m.due_at_ms or 0) - m.last_failed_ms == POLICY_MS[m.attempt - 1], m
    due = defaultdict(set)  # one each, but for the copies of the mode without transactions
    for _, m in evidence.retries():
        due[m.failure_id, m.attempt + 1].add(m.due_at_ms)
    attempts = defaultdict(set)
    for visit in visits:
        attempts[visit.failure_id].add(visit.attempt)
        if visit.attempt > 1:
            assert visit.due_at_ms in due[visit.failure_id, visit.attempt]
            assert visit.at_ms >= (visit.due_at_ms or 0), visit
    for seen in attempts.values():
        assert seen == set(range(1, len(seen) + 1))
        assert len(seen) <= len(POLICY_MS) + 1


def load(stage: Stage, topic: str, start: int, count: int) -> None:
    """Publish records: three of four fail at least once, one of twenty for good."""
    stage.produce(topic, [{"id": n, "fail": 4 if n % 20 == 7 else n % 4} for n in range(start, start + count)], 4)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_kill_9_and_term_under_load(stage: Stage, delivery: str) -> None:
    """Two workers under load; one is killed with -9, the other stopped with TERM in mid-run, both come back."""
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy=POLICY, concurrency=8), options={"delivery": delivery})
    first, second = stage.worker("first", ready=False), stage.worker("second", ready=False)
    for worker in (first, second):
        worker.wait_ready()
    load(stage, topic, 0, 500)
    wait_for(lambda: len(stage.service.done(topic)) > 100, "some are done")
    assert {first.pid, second.pid} <= {visit.pid for visit in stage.service.visits}, "both work"
    first.kill()
    first_place = first.log.splitlines()[0]
    load(stage, topic, 500, 200)
    third = stage.worker("first")  # the same folder: its local stores are those of the killed one
    load(stage, topic, 700, 200)
    wait_for(lambda: third.pid in {visit.pid for visit in stage.service.visits}, "the restarted one works")
    assert second.stop() == 0
    load(stage, topic, 900, 100)
    stage.worker("second", ready=False)
    stage.wait_settled(topic, timeout_s=90)
    check_books(stage, topic, 1000, copies=delivery == "at_least_once")
    assert third.log.splitlines()[0].split(",")[0] == first_place.split(",")[0]


@pytest.mark.timeout(120)
def test_join_and_leave_while_records_wait(stage: Stage) -> None:
    """Workers join and leave while records wait: what waits goes with its partition and comes when due, once."""
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy="8s", concurrency=8))
    first = stage.worker("first")
    stage.produce(topic, [{"id": n, "fail": 1} for n in range(80)], 4)
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 80, "all wait")
    second = stage.worker("second")
    wait_for(lambda: f'"{second.url}"' in first.get(f"/retries/{topic}/?format=json")[1], "the second has a share")
    wait_for(lambda: len(stage.service.done(topic)) == 80, "all are done")
    assert {first.pid, second.pid} == {v.pid for v in stage.service.visits if v.attempt == 2}
    stage.produce(topic, [{"id": n, "fail": 1} for n in range(80, 160)], 4)
    wait_for(lambda: evidence.unsettled() == 0 and evidence.waiting() > 0, "all wait again")
    assert second.stop() == 0
    stage.wait_settled(topic)
    assert stage.service.done(topic) == set(range(160))
    assert evidence.repeated_handoffs() == {}
    due = evidence.due_times()
    later = [v for v in stage.service.visits if v.attempt == 2]
    assert all(v.at_ms >= due[v.failure_id, 2] for v in later)
    assert len({v.failure_id for v in later}) == len(later) == 160, "no drain was cut short, so nothing ran twice"
    assert not evidence.dead()


def test_term_lets_a_handler_finish(stage: Stage) -> None:
    """On TERM what runs may finish within the grace time; its outcome is kept and nothing runs again."""
    gate = Gate()
    stage.service.rule = lambda visit: Answer(200, gate=gate)
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, concurrency=1), options={"grace": "10s"})
    worker = stage.worker()
    stage.produce(topic, [{"id": n} for n in range(3)], 1)
    wait_for(lambda: len(stage.service.visits) == 1, "one runs")
    worker.process.terminate()
    evidence = stage.evidence(topic)
    wait_for(lambda: "Stopping" in worker.log, "it has heard")
    gate.open()
    assert worker.wait(15) == 0
    assert evidence.committed(topic) == {0: 1}
    assert "Traceback" not in worker.log
    stage.worker()
    wait_for(lambda: stage.service.done(topic) == {0, 1, 2}, "the others are done")
    assert [(v.facts["id"], v.attempt) for v in stage.service.visits] == [(0, 1), (1, 1), (2, 1)]


def test_term_gives_back_what_does_not_finish(stage: Stage) -> None:
    """What still runs after the grace time is given back: same failure id, same attempt number, at the next worker."""
    gate = Gate()
    stage.service.rule = lambda visit: (
        Answer(503) if visit.facts.get("fail", 0) >= visit.attempt else Answer(200, gate=gate)
    )
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="200ms", concurrency=2), options={"grace": "1s"})
    worker = stage.worker()
    stage.produce(topic, [{"id": "retried", "fail": 1}, {"id": "fresh"}], 1)  # outcomes count in offset order
    wait_for(lambda: ("retried", 2) in attempts(stage) and ("fresh", 1) in attempts(stage), "both hang")
    assert worker.stop(10) == 0
    assert "Traceback" not in worker.log
    assert stage.service.done(topic) == set()
    evidence = stage.evidence(topic)
    assert evidence.committed(topic) == {0: 1}, "only the one that waits was acknowledged"
    assert evidence.committed(evidence.topology.redelivery) == {0: 0}, "nothing was acknowledged early"
    gate.open()
    again = stage.worker()
    wait_for(lambda: {("fresh", 1), ("retried", 2)} <= attempts(stage, again.pid), "both come again")
    stage.wait_settled(topic)
    by_id = {v.facts["id"]: v.failure_id for v in stage.service.visits if v.pid == again.pid}
    assert by_id == {v.facts["id"]: v.failure_id for v in stage.service.visits if v.pid == worker.pid}
    assert [event.attempt for event in evidence.succeeded()] == [2]
    assert evidence.repeated_handoffs() == {}
    assert not evidence.dead()


def attempts(stage: Stage, pid: int | None = None) -> set[tuple[str, int]]:
    """Return the (id, attempt) pairs seen, of one worker or of all."""
    return {(v.facts["id"], v.attempt) for v in list(stage.service.visits) if pid in (None, v.pid)}


def test_term_in_a_rebalance(stage: Stage) -> None:
    """Told to stop while it gives its partitions back, a worker leaves the group: nobody waits for its session."""
    gate = Gate()
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy=POLICY, concurrency=4), options={"drain": "10s"})
    leaving = stage.worker("leaving")
    stage.service.rule = lambda visit: Answer(gate=gate if visit.pid == leaving.pid else None)
    stage.produce(topic, [{"id": n, "fail": 0} for n in range(40)], 4)
    wait_for(lambda: stage.service.visits, "handlers run")
    staying = stage.worker("staying", ready=False)
    wait_for(lambda: leaving.log.count("Revoking previously assigned") == 2, "its partitions are taken away")
    leaving.signal(signal.SIGTERM)
    wait_for(lambda: "Signal received" in leaving.log, "it has heard")
    gate.open()
    assert leaving.wait(20) == 0
    assert "LeaveGroup request succeeded" in leaving.log
    staying.wait_ready()
    stage.wait_settled(topic)
    assert stage.service.done(topic) == set(range(40))

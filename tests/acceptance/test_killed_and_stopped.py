"""Workers that are killed and stopped, that join and leave: nothing lost, nothing early, nothing handed on twice."""

from __future__ import annotations

import signal

import pytest
from acceptance.books import check_books, check_counts
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

POLICY = "300ms 500ms 700ms"
POLICY_MS = (300, 500, 700)


def long_run(stage: Stage) -> Gate:
    """Have the record `long` take until the gate opens, and others fail as often as they say."""
    gate = Gate()

    def rule(visit: Visit) -> Answer:
        if visit.facts.get("fail", 0) >= visit.attempt:
            return Answer(503)
        return Answer(gate=gate if visit.facts["id"] == "long" else None)

    stage.service.rule = rule
    return gate


def load(stage: Stage, topic: str, start: int, count: int) -> None:
    """Publish records: three of four fail at least once, one of twenty for good."""
    stage.produce(topic, [{"id": n, "fail": 4 if n % 20 == 7 else n % 4} for n in range(start, start + count)], 4)


@pytest.mark.timeout(180)
def test_kill_9_and_term_under_load(stage: Stage) -> None:
    """Two workers in one folder; one is killed with -9, the other stopped with TERM in mid-run, both come back.

    Service, topics, ledger and the workers' own counts agree on every record.
    """
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy=POLICY, concurrency=8))
    first, second = stage.worker("first", ready=False), stage.worker("second", ready=False)
    for worker in (first, second):
        worker.wait_ready()
    load(stage, topic, 0, 500)
    wait_for(lambda: len(stage.service.done(topic)) > 100, "some are done")
    assert {first.pid, second.pid} <= {visit.pid for visit in stage.service.visits}, "both work"
    first.kill()
    load(stage, topic, 500, 200)
    third = stage.worker("first")  # the same folder: its local stores are those of the killed one
    assert third.log.splitlines()[0].split(",")[0] == first.log.splitlines()[0].split(",")[0]
    load(stage, topic, 700, 200)
    wait_for(lambda: third.pid in {visit.pid for visit in stage.service.visits}, "the restarted one works")
    assert second.stop() == 0
    load(stage, topic, 900, 100)
    fourth = stage.worker("second", ready=False)
    stage.wait_settled(topic, timeout_s=90)
    check_books(stage, topic, 1000, POLICY_MS)
    _check_fences(stage.service.of(topic))
    fourth.wait_ready()
    assert [worker.stop() for worker in (third, fourth)] == [0, 0]
    check_counts(stage.evidence(topic))


def _check_fences(visits: list[Visit]) -> None:
    """In each partition they rise with the owners, and each has its own."""
    for partition in range(4):
        owners = [(each.fence, each.pid) for each in visits if each.failure_id.split("/")[-2] == f"{partition}"]
        assert [*dict.fromkeys(owners)] == sorted({*owners})
        assert len({fence for fence, _ in owners}) == len({*owners}) > 1


@pytest.mark.timeout(90)
def test_term_lets_handlers_finish_and_gives_back_the_rest(stage: Stage) -> None:
    """What ends within the grace time keeps its outcome; the rest comes again: same failure id, same attempt."""
    soon, never = Gate(), Gate()

    def rule(visit: Visit) -> Answer:
        if visit.facts.get("fail", 0) >= visit.attempt:
            return Answer(503)
        return Answer(gate=soon if visit.facts["id"] == "soon" else never)

    stage.service.rule = rule
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="200ms", concurrency=2), options={"grace": "3s"})
    worker = stage.worker()
    # outcomes count in offset order; two first deliveries and one due row run at once
    stage.produce(topic, [{"id": "retried", "fail": 1}, {"id": "soon"}, {"id": "never"}], 1)
    running = {("retried", 2), ("soon", 1), ("never", 1)}
    wait_for(lambda: running <= attempts(stage), "all three run")
    worker.process.terminate()
    wait_for(lambda: "Signal received" in worker.log, "it has heard")
    soon.open()
    assert worker.wait(15) == 0
    assert "Traceback" not in worker.log
    evidence = stage.evidence(topic)
    assert evidence.committed(topic) == {0: 2}, "the one that waits and the one that ended in time"
    assert evidence.waiting() == 1, "the row of the one that was running is still there"
    never.open()
    again = stage.worker()
    stage.wait_settled(topic)
    assert attempts(stage, again.pid) == {("retried", 2), ("never", 1)}
    assert len({(v.facts["id"], v.failure_id) for v in stage.service.visits}) == 3, "the same failure ids"
    assert [event.attempt for event in evidence.succeeded()] == [2]
    assert evidence.repeated_handoffs() == {}
    assert not evidence.dead()


@pytest.mark.timeout(90)
def test_a_long_run_stops_no_partition_in_the_grace_time(stage: Stage) -> None:
    """While it lasts, new records are delivered and due ones are retried, as no other worker has the partitions yet."""
    gate = long_run(stage)
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="3s", concurrency=2), options={"grace": "40s"})
    worker = stage.worker()
    stage.produce(topic, [{"id": "long"}, {"id": "retried", "fail": 1}], 2)
    wait_for(lambda: {("long", 1), ("retried", 1)} <= attempts(stage), "both have run or run")
    worker.process.terminate()
    wait_for(lambda: "Signal received" in worker.log, "it has heard")
    stage.produce(topic, [{"id": "beside it"}, {"id": "new"}], 2)
    all_run = {("long", 1), ("retried", 1), ("retried", 2), ("beside it", 1), ("new", 1)}
    wait_for(lambda: all_run <= attempts(stage), "all run", timeout_s=15)
    gate.open()
    assert worker.wait(15) == 0
    evidence = stage.evidence(topic)
    assert (evidence.committed(topic), evidence.waiting()) == ({0: 2, 1: 2}, 0)
    assert len(stage.service.visits) == len(all_run), "none runs twice"


@pytest.mark.timeout(90)
def test_failures_in_the_grace_time_and_another_policy(stage: Stage) -> None:
    """What fails while the worker stops comes back under other delays, also from retry topics that are no more."""
    gate = Gate()
    stage.service.rule = lambda visit: Answer(503, gate=gate) if visit.attempt == 1 else Answer()
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="2s 5s", tiers="per-delay"))
    worker = stage.worker()
    stage.produce(topic, [{"id": n} for n in range(8)], 1)
    wait_for(lambda: len(stage.service.visits) == 8, "all run")
    worker.process.terminate()
    wait_for(lambda: "Signal received" in worker.log, "it has heard")
    gate.open()
    assert worker.wait(15) == 0
    before = stage.evidence(topic)
    assert (before.unsettled(), before.waiting(), len(before.retries())) == (0, 8, 8), "all wait, none is done"

    stage.program(HandlerSpec(topic=topic, policy="700ms", tiers="per-delay"))
    stage.worker()
    stage.wait_settled(topic)
    assert stage.service.done(topic) == set(range(8))
    after = stage.evidence(topic)
    assert not after.retries(), "they wait no second time"
    assert {event.failure_id for event in after.succeeded()} == {m.failure_id for _, m in before.retries()}


def attempts(stage: Stage, pid: int | None = None) -> set[tuple[str, int]]:
    """Return the (id, attempt) pairs seen, of one worker or of all."""
    return {(v.facts["id"], v.attempt) for v in list(stage.service.visits) if pid in (None, v.pid)}


@pytest.mark.extended
def test_term_in_a_rebalance(stage: Stage) -> None:
    """A worker that is stopped while it gives its partitions back leaves the group: no one waits for its session."""
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


@pytest.mark.extended
def test_a_long_run_stops_no_partition_in_a_rebalance(stage: Stage) -> None:
    """While it lasts, what is due is retried by the worker that gives the partitions back."""
    gate = long_run(stage)
    topic = stage.main_topic(partitions=2)
    stage.program(HandlerSpec(topic=topic, policy="10s", concurrency=2), options={"drain": "25s"})
    leaving = stage.worker("leaving")
    stage.produce(topic, [{"id": "long"}, {"id": "retried", "fail": 1}], 2)
    wait_for(lambda: {("long", 1), ("retried", 1)} <= attempts(stage), "both have run or run")
    staying = stage.worker("staying", ready=False)
    wait_for(lambda: leaving.log.count("Revoking previously assigned") == 2, "its partitions are taken away")
    assert ("retried", 2) not in attempts(stage)
    wait_for(lambda: ("retried", 2) in attempts(stage, leaving.pid), "it is retried there", timeout_s=12)
    gate.open()
    staying.wait_ready()
    stage.wait_settled(topic)
    assert len(stage.service.visits) == 3, "none runs twice"

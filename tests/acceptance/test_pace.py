"""An outage spends no attempts, and retries keep to their rate: real workers, a real broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from acceptance.books import by_record, check_times, named, partitions
from harness import Answer, Gate, HandlerSpec, Stage, Visit, Worker, wait_for
from harness.terminal import retryapp

from retryapp.core.lifecycle import CircuitChanged

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

RECORDS = 400
RATE = 20
BURST = 100
AT_ONCE = 2
PLACES = {"max_concurrent": AT_ONCE, "minimum_calls": 1_000}
CIRCUIT = {"minimum_calls": 10, "sampling": "2s", "break_for": "300ms", "ramp": "2s"}


@pytest.fixture(scope="module")
def house(bootstrap: str, make_stage: Callable[[str], Stage]) -> Stage:
    stage = make_stage(bootstrap)
    topics = {name: stage.main_topic(name) for name in ("outage", "burst", "few", "shared")}
    stage.program(
        HandlerSpec(topic=topics["outage"], policy="200ms 400ms", circuit=CIRCUIT),
        HandlerSpec(topic=topics["burst"], policy="3s", rate_limit=f"{RATE}/s"),
        HandlerSpec(topic=topics["few"], policy="300ms", concurrency=8, max_concurrent=AT_ONCE),
        HandlerSpec(topic=topics["shared"], policy="300ms", concurrency=8, circuits={"ledger": PLACES}),
    )
    stage.worker()
    return stage


def states(stage: Stage, topic: str) -> Counter[str]:
    (worker,) = stage.workers
    return Counter(part["circuit"] for part in partitions(worker, topic))


def test_an_outage_spends_no_attempts(house: Stage) -> None:
    """All attempts would be used up within a second; after many seconds none is, and all records are done."""
    topic = named(house, "outage")
    evidence = house.evidence(topic)
    house.service.rule = lambda _visit: Answer(500)
    try:
        house.produce(topic, [{"id": n} for n in range(RECORDS)])
        wait_for(lambda: states(house, topic) == {"open": 2}, "both circuits are open")
        (worker,), opened = house.workers, f'circuit="",handler="{topic}",state="open"'
        transitions = "retryapp_circuit_transitions_total"
        wait_for(lambda: worker.series(transitions).get(opened, 0) >= 6, "both have probed in vain, twice")
        assert not house.service.done(topic)
        assert not evidence.dead()
        calls = len(house.service.of(topic))
    finally:
        house.service.rule = lambda _visit: Answer()
    wait_for(lambda: len(house.service.done(topic)) == RECORDS, "all are done", timeout_s=60)
    wait_for(lambda: states(house, topic) == {"closed": 2}, "both circuits are closed", timeout_s=30)
    house.wait_settled(topic)
    assert calls < RECORDS / 2, "most records did not meet the outage"
    seen = by_record(house.service.of(topic))
    assert sum(visits[-1].attempt - 1 for visits in seen.values()) <= 80, "what failed before the circuits opened"
    assert any(len(visits) > visits[-1].attempt for visits in seen.values()), "some failed for free"
    assert not evidence.dead()
    assert evidence.repeated_handoffs() == {}
    assert not [visit for visit in house.service.of(topic) if visit.due_at_ms and visit.at_ms < visit.due_at_ms]
    changes = evidence.events(CircuitChanged)
    assert {event.partition for event in changes} == {0, 1}
    assert changes[0].from_state == "closed"
    assert "ServiceError" in changes[0].cause


def test_a_burst_keeps_to_the_rate(house: Stage) -> None:
    """All come due at once; in no second more begin than allowed, and not far fewer."""
    topic = named(house, "burst")
    house.service.rule = lambda visit: Answer(500 if visit.attempt == 1 else 200)
    house.produce(topic, [{"id": n} for n in range(BURST)])
    wait_for(lambda: len(house.service.done(topic)) == BURST, "all are done", timeout_s=60)
    house.wait_settled(topic)
    evidence = house.evidence(topic)
    again = sorted(visit.at_ms for visit in house.service.of(topic) if visit.attempt == 2)
    dues = [visit.due_at_ms or 0 for visit in house.service.of(topic) if visit.attempt == 2]
    assert max(dues) - min(dues) < 3_000, "a burst"
    assert len(again) == BURST
    most = max(sum(at <= each < at + 1_000 for each in again) for at in again)
    assert most <= RATE + 4, "one more for each partition, and what the way to the service adds"
    assert again[-1] - again[0] < 2 * 1_000 * BURST / RATE
    check_times(evidence, house.service.of(topic), 2)


@pytest.mark.parametrize(("name", "needs"), [("few", ""), ("shared", "ledger")])
def test_few_retries_run_at_once(house: Stage, name: str, needs: str) -> None:
    """On both partitions together; first deliveries have the handler's own concurrency, and pass meanwhile.

    Where that is so of one service, retries that do not wait for it pass, too.
    """
    topic, gate, most = named(house, name), Gate(), 0

    def retries() -> list[Visit]:
        return [each for each in house.service.of(topic) if each.attempt == 2 and each.facts["needs"] == needs]

    def answer(visit: Visit) -> Answer:
        nonlocal most
        again = retries()
        most = max(most, sum(each.number not in house.service.finished for each in again))
        return Answer(
            500 if visit.facts["fails"] and visit.attempt == 1 else 200, gate=gate if visit in again else None
        )

    house.service.rule = answer
    evidence = house.evidence(topic)
    house.produce(topic, [{"id": n, "fails": True, "needs": needs} for n in range(20)])
    wait_for(lambda: evidence.waiting() == 20, "all have failed once")
    last_due_ms = max(metadata.due_at_ms or 0 for _, metadata in evidence.retries())
    wait_for(lambda: time.time_ns() > (last_due_ms + 500) * 1_000_000, "all are due")
    others = [{"id": n, "fails": bool(needs) and n % 2 == 0, "needs": ""} for n in range(20, 40)]
    house.produce(topic, others)
    wait_for(lambda: house.service.done(topic) == set(range(20, 40)), "the others pass")
    assert len(retries()) == AT_ONCE
    gate.open()
    house.wait_settled(topic)
    assert house.service.done(topic) == set(range(40))
    assert most == AT_ONCE


@pytest.mark.extended
@pytest.mark.timeout(240)
def test_a_service_that_is_down_holds_up_none_but_its_own_records(stage: Stage) -> None:
    """Also over a restart; one that somebody has forced open, too; no attempt is spent, and all are done in the end."""
    topic, down = stage.main_topic(), {"ledger"}
    circuits = {"ledger": CIRCUIT, "mail": CIRCUIT}
    stage.program(HandlerSpec(topic=topic, policy="300ms 400ms", circuits=circuits))
    service, where = stage.service, ("-A", "app", "--topic", topic)
    service.rule = lambda visit: Answer(500 if visit.facts["needs"] in {*down, *[""] * (visit.attempt == 1)} else 200)
    worker = stage.worker()

    def done(need: str) -> int:
        return len({visit.facts["id"] for visit in of(need)} & service.done(topic))

    def of(need: str) -> list[Visit]:
        return [visit for visit in service.of(topic) if visit.facts["needs"] == need]

    stage.produce(topic, [{"id": n, "needs": "ledger"} for n in range(300)])
    wait_for(lambda: {_state_of(worker, topic, n, "ledger") for n in (0, 1)} <= {"open", "half-open"}, "both are open")
    code, said = retryapp(stage, "outage", "open", *where, "--circuit", "mail", "--by", "ann", "--why", "migrates")
    assert (code, {each["outcome"] for each in said["partitions"]}) == (0, {"done"})
    stage.produce(topic, [{"id": n, "needs": ("", "mail")[n % 2]} for n in range(300, 600)])
    wait_for(lambda: done("") == 150, "others are done, those that failed once too", timeout_s=30)
    assert done("mail") == 150, "first deliveries do not wait"
    down.add("mail")
    stage.produce(topic, [{"id": n, "needs": "mail"} for n in range(600, 620)])
    evidence = stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 320, "they have failed once, and wait")
    worker.kill()
    worker = stage.worker("second")
    assert _state_of(worker, topic, 0, "mail") == _state_of(worker, topic, 1, "mail") == "forced-open"
    assert {_state_of(worker, topic, n, "ledger") for n in (0, 1)} <= {"open", "half-open"}, "as it was before"
    assert worker.series("retryapp_circuits")[f'circuit="mail",handler="{topic}",state="forced-open"'] == 2
    code, said = retryapp(stage, "outage", "show", *where)
    assert (code, said["forced"], [*said["circuits"]]) == (1, {}, ["mail"])
    assert {each["why"] for each in said["circuits"]["mail"].values()} == {"migrates"}
    assert done("ledger") == 0
    assert len(of("mail")) == 170, "none of them probes"

    down.clear()
    assert retryapp(stage, "outage", "close", *where, "--circuit", "mail", "--why", "done")[0] == 0
    wait_for(lambda: len(service.done(topic)) == 620, "all are done", timeout_s=60)
    stage.wait_settled(topic)
    assert not evidence.dead()
    last = {visit.failure_id: visit.attempt for visit in service.of(topic) if visit.facts["needs"]}
    assert sum(last.values()) - len(last) <= 50, "what failed before circuits opened, at the first worker"
    late = [visit.at_ms - visit.due_at_ms for visit in of("") if visit.due_at_ms]
    assert sorted(late)[len(late) // 2] < 1_000
    assert evidence.repeated_handoffs() == {}
    assert worker.stop() == 0


def _state_of(worker: Worker, topic: str, number: int, name: str) -> str:
    parts = {part["partition"]: part["circuits"] or {} for part in partitions(worker, topic)}
    return str(parts.get(number, {}).get(name, {}).get("state"))

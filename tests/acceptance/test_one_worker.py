"""One worker with several handlers: what comes back, when, how often, and what is dead."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from acceptance.books import by_record, named
from harness import Answer, HandlerSpec, Stage, Visit, wait_for
from harness.service import fail_first

from retryapp.core.hops import restore
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.kafka import KafkaAdmin, read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

ORDERS_MS = (200, 400, 600)
STEPS = "150ms*2 900ms*3 1800ms"
"""5m 5m 30m 30m 30m 1h, two thousand times faster."""
STEPS_MS = (150, 150, 900, 900, 900, 1800)
LATE_MS = 5_000
"""Far above what it takes; far below what a look at the table once a minute would take."""


def answer(visit: Visit) -> Answer:
    """Answer by what the value says."""
    if visit.facts.get("wrong"):
        return Answer(400)
    if visit.attempt == 1 and "retry_after" in visit.facts:
        return Answer(503, retry_after=str(visit.facts["retry_after"]))
    return fail_first(visit)


@pytest.fixture(scope="module")
def house(bootstrap: str, make_stage: Callable[[str], Stage]) -> Stage:
    """A worker with five handlers and an agent of the user's own."""
    stage = make_stage(bootstrap)
    stage.service.rule = answer
    names = ("orders", "single", "tiered", "slow", "last")
    topics = {name: stage.main_topic(name) for name in names}
    stage.program(
        HandlerSpec(topic=topics["orders"], policy="200ms 400ms 600ms"),
        HandlerSpec(topic=topics["single"], policy=STEPS),
        HandlerSpec(topic=topics["tiered"], policy=STEPS, tiers="per-delay"),
        HandlerSpec(topic=topics["slow"], policy="1h"),
        HandlerSpec(topic=topics["last"], policy="1500ms 15s"),
        agent=stage.main_topic("clicks"),
    )
    stage.worker()
    return stage


def test_used_up_attempts_end_in_the_dead_letter_topic(house: Stage) -> None:
    """A record that never works is tried exactly as often as the policy says, at its delays, and then is dead."""
    topic = named(house, "orders")
    evidence = house.evidence(topic)
    house.produce(topic, [{"id": f"b{n}", "fail": 99} for n in range(6)])

    def letters() -> dict[str, tuple[Record, RetryMetadata]]:
        return {m.failure_id: (r, m) for r, m in evidence.dead() if json.loads(r.value or b"{}").get("fail") == 99}

    wait_for(lambda: len(letters()) == 6, "six dead letters")
    house.wait_settled(topic)
    ours = letters()
    visits = by_record([v for v in house.service.of(topic) if v.facts["id"].startswith("b")])
    assert set(ours) == set(visits)
    waits = {(m.failure_id, m.attempt): (m.due_at_ms or 0) - m.last_failed_ms for _, m in evidence.retries()}
    for failure, (letter, metadata) in ours.items():
        assert [v.attempt for v in visits[failure]] == [1, 2, 3, 4]
        assert [waits[failure, n] for n in (1, 2, 3)] == list(ORDERS_MS)
        assert (metadata.attempt, metadata.reason, len(metadata.history)) == (4, "exhausted", 4)
        assert metadata.error_type == "app.ServiceError"
        assert metadata.error_message == "503 from the service"
        assert "call_service" in (metadata.error_trace or "")
        assert metadata.first_failed_ms <= visits[failure][1].at_ms <= metadata.last_failed_ms
        assert metadata.origin.text in failure
        assert letter.partition == metadata.origin.partition


def test_verdicts_of_the_handler(house: Stage) -> None:
    """Rejected and non-retryable records die at once with their reason; RetryLater's wait replaces the policy's."""
    topic = named(house, "orders")
    evidence = house.evidence(topic)
    house.produce(topic, [{"id": "r1", "reject": 1}, {"id": "w1", "wrong": 1}, {"id": "l1", "retry_after": "1"}])
    wait_for(lambda: "l1" in house.service.done(topic), "the one that was to come later is done")
    house.wait_settled(topic)
    seen = defaultdict(list)
    for visit in house.service.of(topic):
        seen[visit.facts["id"]].append(visit)
    dead = {json.loads(r.value or b"{}").get("id"): m for r, m in evidence.dead() if (r.value or b"").startswith(b"{")}
    assert (dead["r1"].reason, dead["r1"].error_message) == ("rejected", "the service will never take it")
    assert (dead["w1"].reason, dead["w1"].error_type) == ("non-retryable", "app.WrongForGoodError")
    assert {name: len(seen[name]) for name in ("r1", "w1", "l1")} == {"r1": 1, "w1": 1, "l1": 2}
    first, second = seen["l1"]
    assert second.at_ms - first.at_ms >= 1_000, "the wait that was asked for, not the 200 ms of the policy"
    assert "l1" not in dead


def test_values_that_do_not_decode_are_dead_with_their_bytes(house: Stage) -> None:
    """Poison for a JSON handler never reaches it and holds nothing up; the dead letter has the very bytes."""
    topic = named(house, "orders")
    poison = [b"\xff\x00not json", b"", b"[1, 2]", b'{"cut": ', b"x" * 100_000, None]
    producer = house.producer()
    for value in poison:
        producer.produce(topic, value, key=b"poison", partition=1)
    producer.produce(topic, b'{"id": "after poison"}', key=b"poison", partition=1)
    assert producer.flush(10) == 0
    wait_for(lambda: "after poison" in house.service.done(topic), "the record behind the poison is done")
    house.wait_settled(topic)
    letters = [(r, m) for r, m in house.evidence(topic).dead() if r.key == b"poison"]
    assert [restore(r, m).value for r, m in letters] == poison
    assert {(m.reason, m.attempt) for _, m in letters} == {("undecodable", 1)}
    assert not [m for _, m in house.evidence(topic).retries() if m.reason == "undecodable"]


@pytest.mark.parametrize("name", ["single", "tiered"])
def test_the_sequence_in_steps(house: Stage, name: str) -> None:
    """5m 5m 30m 30m 30m 1h, scaled down: seven attempts, each wait as written, on one retry topic or one per delay."""
    topic = named(house, name)
    evidence = house.evidence(topic)
    house.produce(topic, [{"id": n, "fail": 6 if n % 2 else 99} for n in range(8)])
    wait_for(lambda: len(house.service.of(topic)) >= 8 * 7, "seven attempts each")
    house.wait_settled(topic)
    records = by_record(house.service.of(topic))
    assert len(records) == 8
    assert {tuple(v.attempt for v in seen) for seen in records.values()} == {(1, 2, 3, 4, 5, 6, 7)}
    waits = {(m.failure_id, m.attempt): (m.due_at_ms or 0) - m.last_failed_ms for _, m in evidence.retries()}
    due = evidence.due_times()
    for failure, seen in records.items():
        assert tuple(waits[failure, n] for n in range(1, 7)) == STEPS_MS
        assert all(v.at_ms >= due[failure, v.attempt] == v.due_at_ms for v in seen[1:])
    assert {m.reason for _, m in evidence.dead()} == {"exhausted"}
    assert len(evidence.dead()) == 4
    assert sorted(event.attempt for event in evidence.succeeded()) == [7] * 4
    assert not evidence.repeated_handoffs()
    tiers = {t.removeprefix(f"{house.group}.{topic}.retry"): len(evidence.copies(t)) for t in topics_of(house, topic)}
    per_delay = {".150ms": 8 * 2, ".900ms": 8 * 3, ".1s800ms": 8}
    assert tiers == ({"": 8 * 6} if name == "single" else per_delay)


def topics_of(house: Stage, topic: str) -> list[str]:
    """Return the retry topics of a handler that the broker has."""
    names = KafkaAdmin(house.connection).topic_names()
    return [found for found in names if found.startswith(f"{house.group}.{topic}.retry")]


def test_healthy_records_pass_those_that_wait(house: Stage) -> None:
    """Records behind one that waits for an hour, same key and partition, are done; the pages show it waiting."""
    topic = named(house, "slow")
    producer = house.producer()
    for number in range(30):
        fact = {"id": number, "fail": 1 if number == 0 else 0}
        producer.produce(topic, json.dumps(fact).encode(), key="same", partition=0)
    assert producer.flush(10) == 0
    wait_for(lambda: house.service.done(topic) == set(range(1, 30)), "all but the first are done")
    evidence = house.evidence(topic)
    wait_for(lambda: evidence.unsettled() == 0 and evidence.waiting() == 1, "one waits")
    (worker,) = [each for each in house.workers if not each.ended()]
    status, body = worker.get(f"/retries/{topic}/pending?format=json")
    assert status == 200
    assert f"{topic}@" in body
    assert [v.attempt for v in house.service.of(topic)] == [1] * 30


def test_pages_of_a_running_worker(house: Stage) -> None:
    """Index, readiness and metrics answer; Faust's own pages that show tables without a login are off."""
    (worker,) = [each for each in house.workers if not each.ended()]
    assert worker.url.startswith("http://127.0.0.1:")
    status, index = worker.get("/retries/")
    assert status == 200
    assert all(topic in index for topic in house.handlers)
    assert worker.get("/retries/ready")[0] == 200
    assert worker.get("/table/")[0] == 404
    status, metrics = worker.get("/retries/metrics")
    assert status == 200
    orders = named(house, "orders")
    found = re.search(rf'retryapp_dead_letters\{{handler="{orders}"\}} (\S+)', metrics)
    assert found is not None, metrics
    assert float(found.group(1)) == len(house.evidence(orders).records(house.topology(orders).dlq))
    open_lanes = re.findall(r"retryapp_lanes_open\{handler=\"[^\"]+\"\} (\S+)", metrics)
    assert [float(n) for n in open_lanes] == [2.0] * len(house.handlers)


def clicks(house: Stage, topic: str, rounds: int) -> None:
    """Publish clicks of four keys."""
    producer = house.producer()
    for number in range(4 * rounds):
        producer.produce(topic, b"click", key=f"k{number % 4}", partition=number % 2)
    assert producer.flush(10) == 0


def test_stop_and_start_again(house: Stage) -> None:
    """A worker that is stopped and started goes on: what waited waits, and the user's agent and table kept up.

    The last record of a topic, with nothing published behind it, comes on time before the stop and after it.
    """
    topic, slow, last = (named(house, name) for name in ("clicks", "slow", "last"))
    house.produce(slow, [{"id": "waits", "fail": 1}])
    clicks(house, topic, 5)
    evidence = house.evidence(slow)
    wait_for(lambda: len(house.service.of(topic)) == 20, "the agent has seen all clicks")
    wait_for(lambda: evidence.unsettled([topic]) == 0, "the agent's offsets are committed")
    wait_for(lambda: evidence.unsettled() == 0, "the record waits")
    house.produce(last, [{"id": "last", "fail": 2}])
    wait_for(lambda: house.evidence(last).waiting() == 1 and len(house.evidence(last).retries()) == 2, "it waits again")
    (worker,) = [each for each in house.workers if not each.ended()]
    waiting = evidence.waiting()
    assert waiting >= 1
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    again = house.worker("again")
    ready_ms = time.time_ns() // 1_000_000
    clicks(house, topic, 5)
    wait_for(lambda: len(house.service.of(topic)) == 40, "the agent has seen the new clicks")
    counted: dict[bytes | None, list[int]] = defaultdict(list)
    for visit in house.service.of(topic):
        counted[visit.key].append(visit.attempt)
    assert dict(counted) == {f"k{n}".encode(): list(range(1, 11)) for n in range(4)}
    page: dict[str, Any] = json.loads(again.get(f"/retries/{slow}/?format=json")[1])
    assert waiting == sum(int(p["pending"]) for p in page["partitions"]), page
    assert evidence.waiting() == waiting
    assert not [v for v in house.service.of(slow) if v.attempt > 1]
    wait_for(lambda: house.service.done(last) == {"last"}, "the last record came to the second worker")
    _, second, third = house.service.of(last)
    assert 0 <= second.at_ms - (second.due_at_ms or 0) < LATE_MS
    assert third.at_ms >= (third.due_at_ms or 0)
    assert third.at_ms - max(third.due_at_ms or 0, ready_ms) < LATE_MS


def test_nothing_was_handed_on_twice(house: Stage) -> None:
    """Over all of the above, a committed reader sees each copy once and each handler's offsets have moved on."""
    for topic in house.handlers:
        assert not house.evidence(topic).repeated_handoffs()
        assert house.evidence(topic).unsettled() == 0
    assert list(read_topic(house.connection, house.topology(named(house, "orders")).redelivery))

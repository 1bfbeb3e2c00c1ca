"""One worker with several handlers: what comes back, when, how often, and what is dead."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from acceptance.books import by_record, check_books, named
from harness import HandlerSpec, Stage, wait_for
from harness.operator import Operator

from retryapp.core.hops import restore
from retryapp.kafka import KafkaAdmin

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

ORDERS_MS = (200, 400, 600)
STEPS = "150ms*2 900ms*3 1800ms"
"""5m 5m 30m 30m 30m 1h, two thousand times faster."""
STEPS_MS = (150, 150, 900, 900, 900, 1800)
LATE_MS = 5_000
"""Far above what it takes; far below what a look at the table once a minute would take."""


@pytest.fixture(scope="module")
def house(bootstrap: str, make_stage: Callable[[str], Stage]) -> Stage:
    stage = make_stage(bootstrap)
    names = ("orders", "poison", "single", "tiered", "slow", "last")
    topics = {name: stage.main_topic(name) for name in names}
    stage.program(
        HandlerSpec(topic=topics["orders"], policy="200ms 400ms 600ms"),
        HandlerSpec(topic=topics["poison"]),
        HandlerSpec(topic=topics["single"], policy=STEPS),
        HandlerSpec(topic=topics["tiered"], policy=STEPS, tiers="per-delay"),
        HandlerSpec(topic=topics["slow"], policy="1h"),
        HandlerSpec(topic=topics["last"], policy="1500ms 15s"),
    )
    stage.worker()
    return stage


def test_used_up_attempts_end_in_the_dead_letter_topic(house: Stage) -> None:
    """A record that never works is tried exactly as often as the policy says, at its delays, and then is dead."""
    topic = named(house, "orders")
    evidence = house.evidence(topic)
    house.produce(topic, [{"id": n, "fail": 99} for n in range(6)])
    wait_for(lambda: len(evidence.dead()) == 6, "six dead letters")
    house.wait_settled(topic)
    check_books(house, topic, 6, ORDERS_MS)
    visits = by_record(house.service.of(topic))
    for letter, metadata in evidence.dead():
        seen = visits[metadata.failure_id]
        assert [visit.attempt for visit in seen] == [1, 2, 3, 4]
        assert (metadata.attempt, metadata.reason, len(metadata.history)) == (4, "exhausted", 4)
        assert metadata.error_type == "app.ServiceError"
        assert metadata.error_message == "503 from the service"
        assert "call_service" in (metadata.error_trace or "")
        assert metadata.first_failed_ms <= seen[1].at_ms <= metadata.last_failed_ms
        assert metadata.origin.text in metadata.failure_id
        assert letter.partition == metadata.origin.partition


def test_values_that_do_not_decode_are_dead_with_their_bytes(house: Stage) -> None:
    """Poison for a JSON handler never reaches it and holds nothing up; the dead letter has the very bytes."""
    topic = named(house, "poison")
    poison = [b"\xff\x00not json", b"", b"[1, 2]", b'{"cut": ', b"x" * 100_000, None]
    Operator(house.bootstrap).publish(topic, *poison, b'{"id": "after poison"}', key=b"poison", partition=1)
    wait_for(lambda: "after poison" in house.service.done(topic), "the record behind the poison is done")
    house.wait_settled(topic)
    letters = house.evidence(topic).dead()
    assert [restore(r, m).value for r, m in letters] == poison
    assert {(m.reason, m.attempt) for _, m in letters} == {("undecodable", 1)}
    assert not house.evidence(topic).retries()


@pytest.mark.parametrize("name", ["single", "tiered"])
def test_the_sequence_in_steps(house: Stage, name: str) -> None:
    """5m 5m 30m 30m 30m 1h, scaled down: seven attempts, each wait as written, on one retry topic or one per delay."""
    topic = named(house, name)
    evidence = house.evidence(topic)
    house.produce(topic, [{"id": n, "fail": 6 if n % 2 else 99} for n in range(8)])
    wait_for(lambda: len(house.service.of(topic)) >= 8 * 7, "seven attempts each")
    house.wait_settled(topic)
    check_books(house, topic, 8, STEPS_MS)
    assert {visit.attempt for visit in house.service.of(topic)} == set(range(1, 8))
    assert len(house.service.of(topic)) == 8 * 7
    assert {m.reason for _, m in evidence.dead()} == {"exhausted"}
    assert sorted(event.attempt for event in evidence.succeeded()) == [7] * 4
    prefix = f"{house.group}.{topic}.retry"
    made = [found for found in KafkaAdmin(house.connection).topic_names() if found.startswith(prefix)]
    tiers = {found.removeprefix(prefix): len(evidence.copies(found)) for found in made}
    per_delay = {".150ms": 8 * 2, ".900ms": 8 * 3, ".1s800ms": 8}
    assert tiers == ({"": 8 * 6} if name == "single" else per_delay)


def test_healthy_records_pass_those_that_wait(house: Stage) -> None:
    """Records behind one that waits for an hour, same key and partition, are done."""
    topic = named(house, "slow")
    evidence = house.evidence(topic)
    before = evidence.waiting()
    facts = [{"id": number, "fail": 1 if number == 0 else 0} for number in range(30)]
    Operator(house.bootstrap).publish(topic, *(json.dumps(fact).encode() for fact in facts), key="same", partition=0)
    wait_for(lambda: house.service.done(topic) == set(range(1, 30)), "all but the first are done")
    wait_for(lambda: evidence.unsettled() == 0 and evidence.waiting() == before + 1, "one more waits")
    assert [v.attempt for v in house.service.of(topic)] == [1] * (before + 30)


def test_pages_of_a_running_worker(house: Stage) -> None:
    """Index and metrics answer; Faust's own pages that show tables without a login are off."""
    (worker,) = [each for each in house.workers if not each.ended()]
    assert worker.url.startswith("http://127.0.0.1:")
    status, index = worker.get("/retries/")
    assert status == 200
    assert all(topic in index for topic in house.handlers)
    assert worker.get("/table/")[0] == 404
    orders = named(house, "orders")
    dead = house.evidence(orders).records(house.topology(orders).dlq)
    assert worker.series("retryapp_dead_letters")[f'handler="{orders}"'] == len(dead)
    assert [*worker.series("retryapp_lanes_open").values()] == [2.0] * len(house.handlers)


def test_stop_and_start_again(house: Stage) -> None:
    """A worker that is stopped and started goes on: what waited waits.

    The last record of a topic, with nothing published behind it, comes on time before the stop and after it.
    """
    slow, last = named(house, "slow"), named(house, "last")
    house.produce(slow, [{"id": "waits", "fail": 1}])
    evidence = house.evidence(slow)
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
    page: dict[str, Any] = json.loads(again.get(f"/retries/{slow}/?format=json")[1])
    assert waiting == sum(int(p["pending"]) for p in page["everywhere"]), page
    assert evidence.waiting() == waiting
    assert not [v for v in house.service.of(slow) if v.attempt > 1]
    wait_for(lambda: house.service.done(last) == {"last"}, "the last record came to the second worker")
    _, second, third = house.service.of(last)
    assert 0 <= second.at_ms - (second.due_at_ms or 0) < LATE_MS
    assert third.at_ms >= (third.due_at_ms or 0)
    assert third.at_ms - max(third.due_at_ms or 0, ready_ms) < LATE_MS


def test_nothing_was_handed_on_twice(house: Stage) -> None:
    """Over all of the above, a committed reader sees each copy once and each handler's offsets have moved on."""
    admin = KafkaAdmin(house.connection)
    for topic in house.handlers:
        assert not house.evidence(topic).repeated_handoffs()

    def behind() -> list[str]:
        return [
            topic
            for topic in house.handlers
            if house.evidence(topic).committed(topic) != {n: kept.stop for n, kept in admin.offsets(topic).items()}
        ]

    wait_for(lambda: not behind(), "the group is at the end of every main topic", every_s=0.5)

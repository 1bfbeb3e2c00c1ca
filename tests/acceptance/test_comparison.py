"""Ways to retry of docs/comparison.md that no other acceptance test runs: one worker, one group, a handler for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from acceptance.books import by_record, check_times, grouped, named
from harness import Answer, HandlerSpec, Stage, Visit, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

GROWING_MS = (200, 400, 500, 500)
JITTER = 0.25
MAX_ELAPSED_MS = 1_000

PROGRAM = '''
WAYS = {
    "growing": {"policy": RetryPolicy("exp(200ms, x2, cap=500ms, jitter=0.25, 4)")},
    "deadline": {"policy": RetryPolicy("300ms*50", max_elapsed="1s")},
    "never": {"policy": RetryPolicy("1s", otherwise="non-retryable")},
    "asked": {"policy": RetryPolicy("1m")},
    "limited": {"policy": RetryPolicy("200ms", timeout="400ms")},
    "both": {"policy": RetryPolicy("300ms", hot="20ms*2"), "order": "key"},
}


def declare_way(topic: str, options: dict) -> None:
    """Declare the handler of one way."""

    @retries.handler(topic, value=dict, concurrency=8, **options)
    async def handle(value: dict, delivery: Delivery) -> None:
        await call_service(topic, _facts(delivery))
        if "wait" in value and delivery.attempt == 1:
            raise RetryLater(after=value["wait"])


for _name, _options in WAYS.items():
    declare_way(SPEC["ways"][_name], _options)
'''


def answer(visit: Visit) -> Answer:
    """Refuse the attempts, and the tries of each attempt, that the value says; answer some far too late."""
    if visit.attempt <= visit.facts.get("hangs", 0):
        return Answer(after_s=30)
    failed = visit.attempt <= visit.facts.get("fail", 0) or visit.hot_attempt <= visit.facts.get("tries", 0)
    return Answer(503 if failed else 200)


@pytest.fixture(scope="module")
def house(bootstrap: str, make_stage: Callable[[str], Stage]) -> Stage:
    """A worker with a handler for each way; partitions are one, so that records have neighbours."""
    stage = make_stage(bootstrap)
    stage.service.rule = answer
    names = ("growing", "deadline", "never", "asked", "limited", "both")
    topics = {name: stage.main_topic(name, partitions=1) for name in names}
    stage.program(code=PROGRAM, ways=topics)
    stage.handlers = {topic: HandlerSpec(topic=topic) for topic in topics.values()}
    stage.worker()
    return stage


def test_waits_grow_to_their_cap_and_jitter_only_shortens_them(house: Stage) -> None:
    """Each wait is at most as long as the schedule says, and shorter by at most the share; records differ."""
    topic = named(house, "growing")
    house.produce(topic, [{"id": n, "fail": 99} for n in range(8)], 1)
    house.wait_settled(topic)
    evidence = house.evidence(topic)
    waits: defaultdict[int, list[int]] = defaultdict(list)
    for _, metadata in evidence.retries():
        waits[metadata.attempt].append((metadata.due_at_ms or 0) - metadata.last_failed_ms)
    assert sorted(waits) == [1, 2, 3, 4]
    for attempt, longest_ms in enumerate(GROWING_MS, 1):
        assert len(waits[attempt]) == 8
        assert longest_ms * (1 - JITTER) - 1 <= min(waits[attempt]) < max(waits[attempt]) <= longest_ms
    check_times(evidence, house.service.of(topic), 5)
    assert [(m.reason, m.attempt) for _, m in evidence.dead()] == [("exhausted", 5)] * 8


def test_no_wait_ends_after_the_deadline(house: Stage) -> None:
    """A record whose next wait would end later is dead at once, with attempts left."""
    topic = named(house, "deadline")
    house.produce(topic, [{"id": n, "fail": 99} for n in range(4)], 1)
    house.wait_settled(topic)
    evidence = house.evidence(topic)
    assert [metadata.reason for _, metadata in evidence.dead()] == ["expired"] * 4
    for visits in by_record(house.service.of(topic)).values():
        assert 2 <= len(visits) <= 1 + MAX_ELAPSED_MS // 300
        dues = [visit.due_at_ms for visit in visits if visit.due_at_ms is not None]
        firsts = [m.first_failed_ms for _, m in evidence.dead() if m.failure_id == visits[0].failure_id]
        assert max(dues) <= firsts[0] + MAX_ELAPSED_MS


def test_without_retries_a_failure_is_dead_at_once(house: Stage) -> None:
    """Nothing waits; the records after it are done."""
    topic = named(house, "never")
    house.produce(topic, [{"id": n, "fail": 9 * (n % 2)} for n in range(20)], 1)
    house.wait_settled(topic)
    evidence = house.evidence(topic)
    assert [(m.reason, m.attempt) for _, m in evidence.dead()] == [("non-retryable", 1)] * 10
    assert evidence.retries() == []
    assert house.service.done(topic) == set(range(0, 20, 2))
    assert len(house.service.of(topic)) == 20


def test_a_long_wait_is_passed_by_shorter_ones(house: Stage) -> None:
    """Waits of an hour, a second and a tenth, on one retry topic and partition: each ends by itself."""
    topic = named(house, "asked")
    waits = ["1h", "1s", "100ms", "500ms"]
    house.produce(topic, [{"id": n, "wait": wait} for n, wait in enumerate(waits)], 1)
    wait_for(lambda: len(house.service.of(topic)) == 7, "all but the first came back")
    evidence = house.evidence(topic)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 1), "the first waits")
    assert [visit.facts["id"] for visit in house.service.of(topic) if visit.attempt == 2] == [2, 3, 1]
    check_times(evidence, house.service.of(topic), 2)
    assert evidence.dead() == []


def test_a_run_that_takes_too_long_is_a_failure(house: Stage) -> None:
    """It is cancelled and tried again; its neighbours do not wait for it."""
    topic = named(house, "limited")
    house.produce(topic, [{"id": n, "hangs": int(n == 0)} for n in range(10)], 1)
    house.wait_settled(topic)
    evidence = house.evidence(topic)
    ((_, metadata),) = evidence.retries()
    assert metadata.error_type == "retryapp.HandlerTimeoutError"
    assert metadata.last_failed_ms - metadata.started_ms >= 400
    visits = house.service.of(topic)
    assert [visit.attempt for visit in visits if visit.facts["id"] == 0] == [1, 2]
    assert max(visit.at_ms for visit in visits if visit.facts["id"] != 0) < visits[-1].at_ms


def test_tries_in_place_come_before_waits_and_keep_the_order_of_a_key(house: Stage) -> None:
    """Three tries, a wait, three more: only then the next record of the key runs; another key has passed."""
    topic = named(house, "both")
    facts = [{"id": 0, "key": "a", "fail": 9}, {"id": 1, "key": "a"}, {"id": 2, "key": "b", "tries": 1}]
    house.produce(topic, facts, 1)
    house.wait_settled(topic)
    calls = {
        key: [(visit.facts["id"], visit.attempt, visit.hot_attempt) for visit in visits]
        for key, visits in grouped(house.service.of(topic), lambda visit: visit.key).items()
    }
    tries = [(0, attempt, number) for attempt in (1, 2) for number in (1, 2, 3)]
    assert calls == {b"a": [*tries, (1, 1, 1)], b"b": [(2, 1, 1), (2, 1, 2)]}
    evidence = house.evidence(topic)
    assert [(m.reason, m.attempt, m.hot_attempts) for _, m in evidence.dead()] == [("exhausted", 2, 3)]

"""Records of a key, or of a partition, run in order: also while the first of them waits, and over kills."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from acceptance.books import check_times, grouped
from confluent_kafka import Producer
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for
from harness.terminal import retryapp

from retryapp.core.row_keys import is_identity
from retryapp.core.rows import is_held
from retryapp.ledger import take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(120)]

POLL_INTERVAL_S = 2.0
KEYS = 5
RECORDS = 150


def facts(count: int = RECORDS) -> list[dict[str, object]]:
    return [{"id": n, "key": f"k{n % KEYS}", "fail": 2 * (n % 6 == 0)} for n in range(count)]


def assert_in_order(visits: Sequence[Visit]) -> None:
    """In each process, no record begins before an earlier one of its sequence has ended for good."""
    for former, later in pairwise(visits):
        if former.pid == later.pid:
            failed = former.attempt <= former.facts["fail"]
            again = (former.facts["id"], former.attempt + 1) == (later.facts["id"], later.attempt)
            assert again if failed else later.facts["id"] > former.facts["id"], (former, later)
    assert {visit.facts["id"] for visit in visits} == {visit.facts["id"] for visit in visits if visit.attempt}


def test_records_of_a_key_run_in_order_also_over_a_kill(stage: Stage) -> None:
    """Keys do not wait for each other; what was held is handled once all before it are done."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms", order="key"))
    stage.produce(topic, facts(), 1)
    worker = stage.worker("killed")
    wait_for(lambda: len(stage.service.of(topic)) > RECORDS // 3, "a third was delivered")
    worker.kill()
    stage.worker("next")
    total = stage.wait_settled(topic)
    seen = grouped(stage.service.of(topic), lambda visit: visit.key)
    assert len(seen) == KEYS
    for visits in seen.values():
        assert_in_order(visits)
    assert (total.received, total.done, total.dead) == (RECORDS, RECORDS, 0)
    assert stage.evidence(topic).repeated_handoffs() == {}


def test_behind_a_record_that_waits_its_key_is_held_and_others_go_on(stage: Stage) -> None:
    """A stopped worker and its successor keep it so; a held row that somebody removes is found missing.

    Beside it handlers with caps: of one what too many wait for is dead, the other takes in no more until somebody acts.
    """
    topic, released, blocked = (stage.main_topic(name, partitions=1) for name in ("orders", "released", "blocked"))
    stage.service.rule = lambda visit: Answer(503 if visit.facts["id"] == 0 else 200)
    ordered: dict[str, Any] = {"policy": "1h", "order": "key"}
    stage.program(
        HandlerSpec(topic=topic, **ordered),
        HandlerSpec(topic=released, **ordered, caps={"max_sequence_size": 3, "overflow": "release"}),
        HandlerSpec(topic=blocked, **ordered, caps={"max_sequences": 1}),
    )
    stage.produce(topic, facts(30), 1)
    stage.produce(released, [{"id": n, "key": "k"} for n in range(3)], 1)
    stage.produce(blocked, [{"id": 0, "key": "k"}], 1)
    worker = stage.worker("first")
    evidence = stage.evidence(topic)
    wait_for(
        lambda: (evidence.unsettled(), evidence.waiting()) == (0, 30 // KEYS), "one waits, others of its key behind"
    )
    waiting = [stage.evidence(each).waiting for each in (released, blocked)]
    wait_for(lambda: [count() for count in waiting] == [3, 1], "as many wait as may")
    worker.stop()
    stage.worker("second")
    stage.produce(topic, [{"id": 30, "key": "k0"}, {"id": 31, "key": "k1"}], 1)
    stage.produce(released, [{"id": 3, "key": "k"}], 1)
    stage.produce(blocked, [{"id": 1, "key": "other"}], 1)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 30 // KEYS + 1), "one more is behind")
    assert [visit.facts["id"] for visit in stage.service.of(topic) if visit.key == b"k0"] == [0]
    total = evidence.balance()
    assert (total.done, total.pending, total.held) == (32 - 7, 1, 30 // KEYS)

    stage.wait_settled(released)
    assert [visit.facts["id"] for visit in stage.service.of(released)] == [0, 1, 2, 3]
    (letter,) = retryapp(stage, "dead", "list", "-A", "app", "--topic", released)[1]["records"]
    assert (letter["failure_id"].rpartition("/")[2], letter["reason"]) == ("0", "overflow")
    assert (stage.evidence(blocked).unsettled(), len(stage.service.of(blocked))) == (1, 1)
    chosen = ("--topic", blocked, "--field", "/id=0", "--yes", "--why", "test")
    assert retryapp(stage, "pending", "cancel", "-A", "app", *chosen)[0] == 0
    stage.wait_settled(blocked)
    assert [visit.facts["id"] for visit in stage.service.of(blocked)] == [0, 1]

    rows = evidence.records(stage.topology(topic).pending_changelog)
    held = [row for row in rows if is_identity(row.key) and row.value and is_held(row.value)]
    producer = Producer({"bootstrap.servers": stage.bootstrap})
    producer.produce(stage.topology(topic).pending_changelog, None, key=held[-1].key, partition=0)
    assert producer.flush(20) == 0
    (problem,) = take_ledger(stage.connection, stage.topology(topic)).problems
    assert "was held" in problem.text
    assert problem.record == f"{topic}[0]@30"


def test_a_partition_stops_for_a_record_and_the_others_go_on(stage: Stage) -> None:
    """It waits for longer than a consumer may be without polling: the group stays as it is."""
    topic = stage.main_topic(partitions=2)
    policy = f"{3 * POLL_INTERVAL_S:.0f}s 300ms"
    options = {"broker_max_poll_interval": POLL_INTERVAL_S}
    stage.program(HandlerSpec(topic=topic, policy=policy, order="partition"), app_options=options)
    worker = stage.worker()
    before = worker.log.count("retryapp.rebalanced")
    stage.produce(topic, [{"id": n, "fail": 2 * (n == 0)} for n in range(60)], 2)
    other = [visit for visit in range(60) if visit % 2 == 1]
    wait_for(lambda: len(stage.service.done(topic)) >= len(other), "the other partition goes on")
    assert [visit.facts["id"] for visit in stage.service.of(topic) if visit.facts["id"] in other] == other
    total = stage.wait_settled(topic)
    for number in range(2):
        assert_in_order([visit for visit in stage.service.of(topic) if visit.facts["id"] % 2 == number])
    assert worker.log.count("retryapp.rebalanced") == before
    assert (total.done, total.held) == (60, 0)


def test_the_newest_of_a_key_replaces_what_waits_also_over_a_kill(stage: Stage) -> None:
    """It runs at once, and ends the older one's row, which is due soon; after a kill the next worker begins with it."""
    topic, gate = stage.main_topic(partitions=1), Gate()
    fails, hangs = {0, 2}, {3}

    def rule(visit: Visit) -> Answer:
        if visit.facts["id"] in hangs and not gate.is_set():
            return Answer(gate=gate)
        return Answer(503 if visit.facts["id"] in fails else 200)

    stage.service.rule = rule
    stage.program(HandlerSpec(topic=topic, policy="300ms*99", order="latest"))
    worker, evidence = stage.worker("killed"), stage.evidence(topic)

    def waits(number: int) -> None:
        stage.produce(topic, [{"id": number, "key": "k"}], 1)
        wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 1), "it waits")

    waits(0)
    stage.produce(topic, [{"id": 1, "key": "k"}], 1)
    wait_for(lambda: (evidence.unsettled(), evidence.waiting()) == (0, 0), "the newer one is done, nothing waits")
    waits(2)
    stage.produce(topic, [{"id": 3, "key": "k"}], 1)
    wait_for(lambda: stage.service.of(topic)[-1].facts["id"] == 3, "the newer one runs")
    worker.kill()
    seen = len(stage.service.of(topic))
    stage.worker("next")
    wait_for(lambda: len(stage.service.of(topic)) > seen, "the next worker goes on")
    gate.open()
    total = stage.wait_settled(topic)
    assert [visit.facts["id"] for visit in stage.service.of(topic)[seen:]] == [3]
    assert (total.received, total.done, total.superseded) == (4, 2, 2)


def test_without_end_a_record_is_tried_until_it_succeeds_and_its_payload_is_published_once(stage: Stage) -> None:
    """Its partition waits; the copies after the first one carry no payload, and the ledger adds up."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="forever(200ms)", order="partition"))
    stage.produce(topic, [{"id": n, "fail": 6 * (n == 0), "pad": "x" * 10_000} for n in range(3)], 1)
    worker = stage.worker()
    evidence = stage.evidence(topic)
    wait_for(lambda: len(evidence.retries()) >= 3, "it has failed some times")
    worker.kill()
    stage.worker("next")
    total = stage.wait_settled(topic)
    check_times(evidence, stage.service.of(topic), 7)
    attempts = [(visit.facts["id"], visit.attempt) for visit in stage.service.of(topic) if visit.facts["id"]]
    assert attempts == [(1, 1), (2, 1)]
    first, *later = evidence.retries()
    assert len(first[0].value or b"") > 10_000
    assert [(record.key, record.value, metadata.no_payload) for record, metadata in later] == [(b"0", b"", True)] * 5
    values = {visit.value for visit in stage.service.of(topic) if visit.facts["id"] == 0}
    assert values == {first[0].value}, "each attempt has the value"
    assert (total.done, total.recovered) == (3, 1)

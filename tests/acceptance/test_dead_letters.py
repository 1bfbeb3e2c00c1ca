"""Handlers of dead letters, and handlers that drop what is dead: each record has one fate, and the ledger knows it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for
from harness.evidence import Evidence
from harness.terminal import retryapp

from retryapp.core.control import is_mark
from retryapp.core.lifecycle import Discarded, Handled
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin
from retryapp.ledger import Balance

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(240)]

PROGRAM = '''
from retryapp import non_retryable


class InvalidError(ValueError):
    """An order that nobody can charge."""


POLICY = RetryPolicy("100ms", on=[non_retryable(InvalidError, dead_letters="invalid")])


@retries.handler(SPEC["orders"], value=dict, policy=POLICY)
async def charge(order: dict, delivery: Delivery) -> None:
    """Charge an order."""
    await call_service(SPEC["orders"], _facts(delivery))
    if order.get("invalid"):
        raise InvalidError("no amount")


async def report(order: dict, delivery: Delivery) -> None:
    """Report a dead order."""
    letter = delivery.letter
    said = [letter.reason, letter.error_type, letter.error_message, letter.attempts, letter.origin.text, letter.damage]
    await call_service("letters", _facts(delivery) | {"key": _text(json.dumps(said).encode())})


retries.dead_letters(SPEC["orders"], policy="100ms*2", value=dict, concurrency=4)(report)
retries.dead_letters(SPEC["orders"], named="invalid", policy="100ms*2", value=dict)(report)


@retries.handler(SPEC["views"], value=dict, policy="100ms", dead_letters="drop")
async def count(view: dict, delivery: Delivery) -> None:
    """Count a view."""
    await call_service(SPEC["views"], _facts(delivery))
'''


SECOND = '''
async def warn(order: dict, delivery: Delivery) -> None:
    """Tell somebody of another application's dead order."""
    said = json.dumps([delivery.letter.reason, delivery.letter.error_message, delivery.letter.origin.text])
    await call_service("warned", _facts(delivery) | {"key": _text(said.encode())})


retries.dead_letters(SPEC["orders"], group=SPEC["of"], policy="100ms", value=dict)(warn)
'''


def letters_of(stage: Stage, topic: str, name: str = "") -> HandlerTopology:
    main = f"{HandlerTopology(stage.group, topic).dlq}{name}"
    return HandlerTopology(stage.group, main, drop=True, letters_of=topic)


def settled(stage: Stage, topology: HandlerTopology) -> tuple[Balance, Evidence]:
    """Wait until everything has its fate; return the ledger's count, which adds up, and what the topics say."""
    evidence = Evidence(stage.connection, topology)
    evidence.wait_settled()
    return evidence.balance(), evidence


def test_letters_are_handled_once_over_a_kill(stage: Stage) -> None:
    """A worker dies in the handler of dead letters: each letter is marked once, as handled or as failed."""
    topic, views = stage.main_topic(), stage.main_topic("views")
    stage.program(code=PROGRAM, orders=topic, views=views)
    gate = Gate()

    def answer(visit: Visit) -> Answer:
        if visit.topic == "letters":
            slow = not gate.is_set() and visit.facts["id"] % 4 == 0
            return Answer(503 if visit.attempt <= visit.facts.get("letter", 0) else 200, gate=gate if slow else None)
        return Answer(503 if visit.attempt <= visit.facts["fail"] and not visit.facts["invalid"] else 200)

    stage.service.rule = answer
    facts = [{"id": n, "fail": n % 3, "letter": n % 5, "invalid": n % 8 == 1} for n in range(48)]
    stage.produce(topic, facts)
    first = stage.worker("killed")
    dead = {fact["id"] for fact in facts if fact["fail"] > 1 or fact["invalid"]}

    def begun() -> set[int]:
        return {visit.facts["id"] for visit in stage.service.of("letters") if visit.facts["id"] % 4 == 0}

    wait_for(lambda: len(begun()) >= 3, "letters are being handled", timeout_s=60)
    first.kill()
    gate.set()
    worker = stage.worker("second")
    total, _ = settled(stage, HandlerTopology(stage.group, topic, dead_letters=("invalid",)))
    assert (total.received, total.dead, total.lost) == (48, len(dead), 0)
    invalid = {fact["id"] for fact in facts if fact["invalid"]}
    for name, ids in (("", dead - invalid), (".invalid", invalid)):
        total, evidence = settled(stage, letters_of(stage, topic, name))
        lost_cause = {n for n in ids if facts[n]["letter"] >= 3}
        assert ids, "the case is there"
        assert lost_cause, "the case is there"
        assert (total.received, total.done, total.dead) == (len(ids), len(ids - lost_cause), len(lost_cause))
        marks = [*evidence.events(Handled), *evidence.events(Discarded)]
        by_letter = {
            (record.partition, record.offset): json.loads(record.value or b"")["id"]
            for record in evidence.records(evidence.topology.main)
            if not is_mark(record.headers)
        }
        found = Counter(
            (by_letter[tuple(int(part) for part in mark.failure_id.split("/")[-2:])], mark.kind) for mark in marks
        )
        assert found == {(n, "failed" if n in lost_cause else "handled"): 1 for n in ids}
    said = {visit.facts["id"]: json.loads(visit.key or b"") for visit in stage.service.of("letters")}
    assert set(said) == dead
    assert {n: tuple(said[n][:4]) for n in dead - invalid} == dict.fromkeys(
        dead - invalid, ("exhausted", "app.ServiceError", "503 from the service", 2)
    )
    assert {n: tuple(said[n][:4]) for n in invalid} == dict.fromkeys(
        invalid, ("non-retryable", "app.InvalidError", "no amount", 1)
    )
    assert all(origin.startswith(topic) and damage is None for *_, origin, damage in said.values())
    _check_commands(stage, topic, {n: "failed" if facts[n]["letter"] >= 3 else "handled" for n in dead})
    status, body = worker.get(f"/retries/{letters_of(stage, topic).main}/?format=json")
    assert (status, json.loads(body)["handler"]["group"]["dead"]) == (200, 0)
    assert worker.stop() == 0


def _check_commands(stage: Stage, topic: str, marks: dict[int, str]) -> None:
    """The commands show the marks; the plan needs nothing, and every handler's ledger adds up, also without the app."""
    listed = retryapp(stage, "dead", "list", "-A", "app", "--topic", topic, "--limit", "100")[1]["records"]
    ids = {(visit.facts["id"]): visit.failure_id for visit in stage.service.of(topic)}
    assert {letter["failure_id"]: letter["mark"] for letter in listed} == {ids[n]: mark for n, mark in marks.items()}
    shown = retryapp(stage, "dead", "show", "--broker", stage.bootstrap, listed[0]["failure_id"])[1]
    assert shown["mark"] == listed[0]["mark"]
    assert retryapp(stage, "plan", "-A", "app")[1]["ok"]
    mains = {handler["main"] for handler in retryapp(stage, "ledger", "-A", "app")[1]["handlers"]}
    place = ("--broker", stage.bootstrap, "--group", stage.group)
    assert {handler["main"] for handler in retryapp(stage, "ledger", *place)[1]["handlers"]} == mains
    assert len(mains) == 4
    assert retryapp(stage, "doctor", "-A", "app")[1]["findings"]


def test_what_is_dropped_is_counted(stage: Stage) -> None:
    """There is no dead-letter topic; the ledger, the metrics and the log say what was discarded, and why."""
    topic, views = stage.main_topic(), stage.main_topic("views")
    stage.program(code=PROGRAM, orders=topic, views=views)
    stage.service.rule = lambda visit: Answer(503 if visit.attempt <= visit.facts["fail"] else 200)
    stage.produce(views, [{"id": n, "fail": n % 4} for n in range(40)])
    worker = stage.worker()
    topology = HandlerTopology(stage.group, views, drop=True)
    total, evidence = settled(stage, topology)
    assert (total.received, total.done, total.discarded, total.dead) == (40, 20, 20, 0)
    gone = evidence.events(Discarded)
    assert Counter((e.kind, e.reason, e.error_type, e.error_message, e.attempt) for e in gone) == {
        ("discarded", "exhausted", "app.ServiceError", "503 from the service", 2): 20
    }
    assert topology.dlq not in KafkaAdmin(stage.connection).topic_names()
    assert worker.series("retryapp_discarded_total")[f'handler="{views}",reason="exhausted"'] == 20
    assert "retryapp.discarded" in worker.log
    assert worker.stop() == 0


def test_a_paused_handler_of_letters_passes_what_was_replayed_meanwhile(stage: Stage) -> None:
    """It has the others once it goes on; what it has handled is replayed by force alone, and all say what it was."""
    topic, views = stage.main_topic(), stage.main_topic("views")
    stage.program(code=PROGRAM, orders=topic, views=views)
    mended = Gate()
    stage.service.rule = lambda visit: Answer(200 if mended.is_set() or visit.topic == "letters" else 503)
    worker = stage.worker()
    letters, place = letters_of(stage, topic), ("-A", "app")
    assert retryapp(stage, "handler", "pause", *place, "--topic", letters.main, "--why", "migration")[0] == 0
    stage.produce(topic, [{"id": n} for n in range(6)])
    wait_for(lambda: len(retryapp(stage, "dead", "list", *place, "--topic", topic)[1]["records"]) == 6, "all are dead")
    ids = {visit.facts["id"]: visit.failure_id for visit in stage.service.of(topic)}
    mended.set()
    assert retryapp(stage, "dead", "replay", *place, ids[0], "--why", "mended")[0] == 0
    assert retryapp(stage, "dead", "discard", *place, ids[1], "--why", "test data")[0] == 0
    assert retryapp(stage, "handler", "resume", *place, "--topic", letters.main, "--why", "done")[0] == 0
    total, _ = settled(stage, letters)
    assert (total.received, total.done, total.skipped, total.copies) == (6, 4, 2, 7), (
        "four marks of its own, three more"
    )
    assert sorted(visit.facts["id"] for visit in stage.service.of("letters")) == [2, 3, 4, 5]
    assert retryapp(stage, "dead", "replay", *place, ids[2], "--why", "again")[1]["outcomes"][0]["refused"] == "handled"
    assert retryapp(stage, "dead", "replay", *place, ids[3], "--force", "--why", "again")[0] == 0
    marks = {ids[0]: "recovered", ids[1]: "discarded", ids[2]: "handled", ids[3]: "recovered"} | {
        ids[n]: "handled" for n in (4, 5)
    }
    listed = retryapp(stage, "dead", "list", *place, "--topic", topic)[1]["records"]
    page = json.loads(worker.get(f"/retries/{topic}/dead?marked=1&format=json")[1])["records"]
    for records in (listed, page):
        assert {record["failure_id"]: record["mark"] for record in records} == marks
    total, _ = settled(stage, HandlerTopology(stage.group, topic, dead_letters=("invalid",)))
    assert (total.received, total.done, total.dead, total.handled, total.discarded) == (6, 2, 3, 3, 1)
    assert worker.stop() == 0


def test_another_app_is_told_why_a_record_died(stage: Stage, make_stage: Callable[[str], Stage]) -> None:
    """It reads letters and no marks, waits and fails by itself, and changes nothing for the other group."""
    topic, count = stage.main_topic(), 12
    stage.program(HandlerSpec(topic=topic))
    stage.service.rule = lambda _visit: Answer(422)
    stage.produce(topic, [{"id": n} for n in range(count)])
    worker = stage.worker()
    stage.wait_settled(topic)
    evidence, place = stage.evidence(topic), ("-A", "app", "--topic", topic)
    letters = [metadata.failure_id for _, metadata in evidence.dead()]
    assert retryapp(stage, "dead", "discard", *place, letters[0])[0] == 0
    before = len(evidence.records(evidence.topology.dlq))
    assert before == count + 1, "each letter, and the mark of the one that was discarded"

    other = make_stage(stage.bootstrap)
    other.program(code=SECOND, orders=topic, of=stage.group)
    other.service.rule = lambda visit: Answer(503 if visit.attempt <= visit.facts["id"] % 3 else 200)
    other.worker("second")
    topology = HandlerTopology(
        other.group, evidence.topology.dlq, drop=True, letters_of=topic, letters_from=stage.group
    )
    total, warned = settled(other, topology)
    assert (total.received, total.done, total.dead) == (count, count - count // 3, count // 3)
    said = {visit.facts["id"]: json.loads(visit.key or b"") for visit in other.service.of("warned")}
    assert {n: tuple(each[:2]) for n, each in said.items()} == dict.fromkeys(
        range(count), ("rejected", "the service will never take it")
    )
    assert all(origin.startswith(topic) for _, _, origin in said.values())
    marks = Counter(event.kind for event in [*warned.events(Handled), *warned.events(Discarded)])
    assert marks == {"handled": count - count // 3, "failed": count // 3}
    assert len(evidence.records(evidence.topology.dlq)) == before, "nothing is written to it"
    assert retryapp(other, "plan", "-A", "app")[1]["ok"]
    found = retryapp(other, "doctor", "-A", "app")[1]["findings"]
    assert not [each for each in found if each["severity"] == "problem"]
    assert worker.stop() == 0

"""Commands to real workers: obeyed once over kills, with the ledger balanced through all of it."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from harness import Answer, HandlerSpec, Stage, wait_for
from harness.terminal import retryapp

from retryapp.core.control import Command, Verb
from retryapp.core.lifecycle import Commanded
from retryapp.core.record import idempotency_key
from retryapp.kafka.commands import send_commands

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(240)]


def test_letters_are_replayed_once_over_a_kill(stage: Stage) -> None:
    """The worker dies amid the commands: each letter is replayed once, under the key of its first attempt."""
    topic, mended = stage.main_topic(), threading.Event()
    stage.program(HandlerSpec(topic=topic, policy="100ms"))
    stage.service.rule = lambda _visit: Answer(200 if mended.is_set() else 503)
    stage.produce(topic, [{"id": n} for n in range(60)])
    first = stage.worker("killed")
    topology, evidence = stage.topology(topic), stage.evidence(topic)
    wait_for(lambda: len(evidence.records(topology.dlq)) == 60, "all are dead", timeout_s=60)
    listed = retryapp(stage, "dead", "list", "-A", "app", "--limit", "100")[1]["records"]
    names = [letter["failure_id"] for letter in listed]
    mended.set()
    place = ("--broker", stage.bootstrap, "-", "--by", "ann", "--why", "mended")
    sender = threading.Thread(target=retryapp, args=(stage, "dead", "replay", *place), kwargs={"names": names})
    sender.start()
    wait_for(lambda: len(stage.service.visits) > 125, "replays have begun", timeout_s=60, every_s=0.005)
    first.kill()
    second = stage.worker("second")
    sender.join()
    code, again = retryapp(stage, "dead", "replay", *place, names=names)
    assert (code, {each["refused"] for each in again["outcomes"]}) == (1, {"replayed"})
    wait_for(lambda: evidence.waiting() == 0, "nothing waits", timeout_s=60)
    total = evidence.balance()
    assert (total.received, total.done, total.dead, total.lost) == (60, 60, 0, 0)
    done = Counter(visit.failure_id for visit in stage.service.visits if visit.replays == 1)
    assert set(done) == set(names)
    assert all(visit.idempotency_key == idempotency_key(visit.failure_id) for visit in stage.service.visits)
    told = evidence.events(Commanded)
    assert len(told) == 120
    assert {(event.by, event.why) for event in told} == {("ann", "mended")}
    assert Counter(event.refused for event in told) == {None: 60, "replayed": 60}
    listed = retryapp(stage, "dead", "list", "-A", "app", "--limit", "100")[1]["records"]
    assert Counter(letter["mark"] for letter in listed) == {"recovered": 60}
    assert second.stop() == 0


def test_what_waits_is_steered(stage: Stage) -> None:
    """Now, later, never, held over a kill, edited; queued while no worker runs; refused with a reason."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="1h*3"))
    stage.service.rule = lambda visit: Answer(503 if visit.attempt == 1 and not visit.replays else 200)
    stage.produce(topic, [{"id": n} for n in range(4)])
    producer = stage.producer()
    producer.produce(topic, b'{"id": 4, "customer": {"name": "ann"}}', key="four", headers={"tenant": b"acme"})
    assert producer.flush(20) == 0
    worker = stage.worker(env={"RETRYAPP_WEB_OPERATORS": "local"})
    topology, evidence = stage.topology(topic), stage.evidence(topic)
    wait_for(lambda: evidence.waiting() == 5, "all wait", timeout_s=60)
    names = {visit.facts["id"]: visit.failure_id for visit in stage.service.visits}
    place = ("--broker", stage.bootstrap)

    def found(*options: str) -> set[str]:
        return {row["failure_id"] for row in retryapp(stage, "pending", "list", "-A", "app", *options)[1]["records"]}

    assert found("--message", "503", "--error", "app.ServiceError") == {*names.values()}
    assert found("--has-header", "tenant=acme", "--field", "/customer/name=ann") == {names[4]}
    assert retryapp(stage, "pending", "retry-now", "-A", "app", "--field", "/id=0", "--yes", "--why", "test")[0] == 0
    assert (
        retryapp(stage, "pending", "reschedule", "-A", "app", "--key", "1", "--at", "1s", "--yes", "--why", "x")[0] == 0
    )
    asked = {"verb": "hold", "failure_id": names[4], "for": "2d"}
    assert worker.post(f"/retries/{topic}/command", asked)[1]["outcome"] == "done"
    assert retryapp(stage, "pending", "retry-now", *place, names[4])[0] == 0
    asked = {"verb": "cancel", "failure_id": names[2], "why": "withdrawn"}
    status, said = worker.post(f"/retries/{topic}/command", asked)
    assert (status, said["outcome"], said["refused"]) == (200, "done", None)
    assert worker.post(f"/retries/{topic}/command", {**asked, "verb": "retry-now"})[1]["refused"] == "not-waiting"
    code, said = retryapp(stage, "pending", "cancel", *place, names[2])
    assert (code, said["outcomes"][0]["refused"]) == (1, "not-waiting")
    wait_for(lambda: evidence.waiting() == 2, "two are done", timeout_s=60)
    worker.kill()
    code, said = retryapp(stage, "pending", "cancel", *place, names[3], "--wait", "1s")
    assert (code, said["outcomes"][0]["outcome"]) == (1, "queued")
    worker = stage.worker("second")
    wait_for(lambda: evidence.waiting() == 1, "what was queued is obeyed", timeout_s=60)
    (held,) = retryapp(stage, "pending", "list", "-A", "app")[1]["records"]
    assert (held["failure_id"], held["held_by"], held["held_back_by"]) == (names[4], "operator", "operator")
    total = evidence.balance()
    assert (total.received, total.done, total.dead, total.pending, total.on_hold) == (5, 2, 2, 1, 1)
    assert Counter(visit.facts["id"] for visit in stage.service.visits) == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}
    assert retryapp(stage, "pending", "release", *place, names[4])[0] == 0
    wait_for(lambda: evidence.waiting() == 0, "what was held goes on", timeout_s=60)
    assert evidence.balance().done == 3
    letters = retryapp(stage, "dead", "list", "-A", "app")[1]["records"]
    assert {letter["failure_id"]: letter["reason"] for letter in letters} == {
        names[2]: "cancelled",
        names[3]: "cancelled",
    }
    assert retryapp(stage, "dead", "discard", *place, names[2])[0] == 0
    assert evidence.balance().discarded == 1
    edit = ("--value", '{"id": 33}', "--idempotency", "new")
    assert retryapp(stage, "dead", "replay", *place, names[3], *edit)[0] == 0
    wait_for(lambda: stage.service.visits[-1].facts["id"] == 33, "the edited record runs")
    assert stage.service.visits[-1].failure_id == names[3]
    assert stage.service.visits[-1].idempotency_key == f"{idempotency_key(names[3])}-e1"
    wait_for(lambda: evidence.waiting() == 0, "it is done")
    total = evidence.balance()
    assert (total.received, total.done, total.dead, total.discarded) == (5, 4, 0, 1)
    lost = Command(id="x", verb=Verb.CANCEL, failure_id=names[0])
    assert send_commands(stage.connection, topology, [lost])["x"].refused == "not-waiting"
    assert worker.stop() == 0


def test_a_paused_handler_stays_so_over_restarts(stage: Stage) -> None:
    """No record is delivered, by whichever worker, until it goes on; then each is, once."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="100ms*3"))
    stage.service.rule = lambda visit: Answer(503 if visit.attempt == 1 else 200)
    worker = stage.worker()
    where = ("-A", "app", "--topic", topic)
    assert retryapp(stage, "handler", "show", *where)[0] == 0
    code, said = retryapp(stage, "handler", "pause", *where, "--by", "ann", "--why", "migration")
    assert (code, {each["outcome"] for each in said["partitions"]}) == (0, {"done"})
    stage.produce(topic, [{"id": n} for n in range(20)])
    worker.kill()
    worker = stage.worker("second")
    code, said = retryapp(stage, "handler", "show", *where)
    assert (code, {each["why"] for each in said["paused"].values()}) == (1, {"migration"})
    assert "Paused by ann: migration" in worker.get(f"/retries/{topic}/")[1]
    assert stage.service.visits == []
    findings = retryapp(stage, "doctor", "-A", "app")[1]["findings"]
    (found,) = [each for each in findings if each["name"] == f"handler of {topic}"]
    assert (found["severity"], found["seen"].startswith("paused by ann: migration, for ")) == ("warning", True)
    assert retryapp(stage, "handler", "resume", *where, "--why", "done")[0] == 0
    wait_for(lambda: len(stage.service.visits) == 40, "all are done", timeout_s=60)
    assert stage.wait_settled(topic).done == 20
    assert Counter(visit.facts["id"] for visit in stage.service.visits) == dict.fromkeys(range(20), 2)
    assert worker.stop() == 0


@pytest.mark.extended
def test_a_forced_outage_and_a_rule_that_pauses_hold_over_restarts(stage: Stage) -> None:
    """No attempt is spent, nobody passes the record round, and in the end each record is done."""
    topic, mended = stage.main_topic(), threading.Event()
    stage.program(HandlerSpec(topic=topic, policy="200ms*2", circuit={"break_for": "1s"}, pauses=True))
    stage.service.rule = lambda visit: Answer(503 if visit.facts["id"] == 7 and not mended.is_set() else 200)
    worker = stage.worker()
    where, base = ("-A", "app", "--topic", topic), f"/retries/{topic}/"
    code, said = retryapp(stage, "outage", "open", *where, "--by", "ann", "--why", "ledger down")
    assert (code, {each["outcome"] for each in said["partitions"]}) == (0, {"done"})
    stage.produce(topic, [{"id": n} for n in range(20)])
    worker.kill()
    worker = stage.worker("second")
    code, said = retryapp(stage, "outage", "show", *where)
    assert (code, {each["why"] for each in said["forced"].values()}) == (1, {"ledger down"})
    assert "The circuit is forced open by ann: ledger down" in worker.get(base)[1]
    assert worker.series("retryapp_circuits")[f'circuit="",handler="{topic}",state="forced-open"'] == 2
    assert stage.service.visits == []
    findings = retryapp(stage, "doctor", "-A", "app")[1]["findings"]
    assert "retryapp outage close" in next(each for each in findings if each["name"] == f"handler of {topic}")["remedy"]

    assert retryapp(stage, "outage", "close", *where, "--why", "done")[0] == 0
    wait_for(lambda: retryapp(stage, "handler", "show", *where)[0] == 1, "the rule has paused its partition")
    said = retryapp(stage, "handler", "show", *where)[1]
    ((number, level),) = said["paused"].items()
    (name,) = {visit.failure_id for visit in stage.service.visits if visit.facts["id"] == 7}
    assert (level["record"], level["why"]) == (name, "app.ServiceError: <number> from the service")
    status, text = worker.get("/retries/ready")
    assert (status, f"{topic}[{number}]" in text, "paused by rule pausing=" in text) == (503, True, True)
    assert "retryapp.partition_paused" in worker.log
    worker.kill()
    third = stage.worker("third", ready=False)
    wait_for(lambda: third.get("/retries/ready")[1].count("paused by rule") == 1, "it is open, and paused")
    assert sum(visit.facts["id"] == 7 for visit in stage.service.visits) == 1

    mended.set()
    assert retryapp(stage, "handler", "resume", *where, "--why", "done")[0] == 0
    wait_for(lambda: len(stage.service.done(topic)) == 20, "all are done", timeout_s=60)
    assert stage.wait_settled(topic).done == 20
    assert [visit.attempt for visit in stage.service.visits if visit.facts["id"] == 7] == [1, 1]
    assert third.stop() == 0

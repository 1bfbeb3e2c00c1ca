"""Commands on real workers when history, offsets and disks are lost; sent at once; among thousands of bad ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import Answer, HandlerSpec, Stage, wait_for
from harness.operator import Operator
from harness.terminal import retryapp

from retryapp.core.control import Command, Verb
from retryapp.core.jobs import HandlerVerb, JobVerb, LetterFilter
from retryapp.core.lifecycle import Commanded
from retryapp.kafka import KafkaAdmin
from retryapp.kafka.commands import send_commands
from retryapp.kafka.remembered import remembered
from retryapp.lookup.jobs import Order, begin, parts_of, tell_handler, tell_job
from retryapp.lookup.previews import Scope

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(300)]
PARTITIONS = 3
BAD = 10_000


def test_commands_outlive_history_offsets_and_disks(stage: Stage) -> None:
    """What was recovered stays so, no command is obeyed again, and the ledger balances."""
    topic, mended = stage.main_topic(partitions=PARTITIONS), threading.Event()
    stage.program(HandlerSpec(topic=topic, policy="50ms"), partitions=PARTITIONS)
    stage.service.rule = lambda _visit: Answer(200 if mended.is_set() else 422)
    stage.produce(topic, [{"id": n} for n in range(60)], PARTITIONS)
    worker = stage.worker("before", env={"RETRYAPP_DATADIR": str(stage.folder / "data")})
    topology, evidence = stage.topology(topic), stage.evidence(topic)
    operator, admin = Operator(stage.bootstrap), KafkaAdmin(stage.connection)
    wait_for(lambda: len(evidence.records(topology.dlq)) == 60, "all are dead", timeout_s=90)
    mended.set()
    app = ("-A", "app")
    code, ended = retryapp(stage, "dead", "replay", *app, "--all", "--yes", "--why", "test")
    assert (code, ended["state"], ended["done"]) == (0, "ended", 60)
    wait_for(lambda: evidence.waiting() == 0, "nothing waits", timeout_s=60)

    def tell(number: int) -> None:
        verb = HandlerVerb.PAUSE if number % 2 else HandlerVerb.RESUME
        tell_handler(stage.connection, topology, verb, by=f"user {number}", why="", wait_s=60)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(tell, range(6)))
    paused = remembered(stage.connection, topology)
    assert len(paused) == PARTITIONS
    assert len({each.paused and each.paused.by for each in paused.values()}) == 1
    tell(0)

    assert worker.stop() == 0
    for name in (topology.retry_topics[0], topology.events):
        for number, kept in admin.offsets(name).items():
            operator.delete_records(name, number, kept.stop)
    operator.set_offsets(stage.group, {(topic, number): 0 for number in range(PARTITIONS)})
    visits = len(stage.service.visits)
    worker = stage.worker("after", env={"RETRYAPP_DATADIR": str(stage.folder / "data2")})
    wait_for(lambda: evidence.unsettled() == 0, "the main topic is read again", timeout_s=60)
    code, said = retryapp(stage, "dead", "replay", *app, "--all", "--yes", "--why", "test")
    assert (code, said["preview"]["letters"], said["preview"]["refused"]) == (1, 0, {"recovered": 60})
    assert evidence.events(Commanded) == []
    assert len(stage.service.visits) == visits + 60
    assert {visit.replays for visit in stage.service.visits[visits:]} == {0}
    total = evidence.balance()
    assert (total.received, total.done, total.dead, total.lost) == (60, 60, 0, 0)

    misplaced = Command(id="m", verb=Verb.CANCEL, failure_id=f"{stage.group}/{topic}@x/1/0").to_record(topic, 0).value
    for number in range(BAD):
        operator.producer.produce(topology.control, (misplaced, b'{"v": 2}', None)[number % 3], partition=0)
    operator.producer.flush(30)
    good = Command(id="good", verb=Verb.CANCEL, failure_id=f"{stage.group}/{topic}@x/0/0")
    assert send_commands(stage.connection, topology, [good], wait_s=60)["good"].refused == "not-waiting"
    assert sum(event.refused in ("misplaced", "malformed") for event in evidence.events(Commanded)) == BAD
    assert worker.stop() == 0

    order = Order(Verb.DISCARD, LetterFilter(), id="late")
    numbers = range(PARTITIONS)
    scope = Scope(letters=dict.fromkeys(numbers, 1), upto={number: {topology.dlq: 99} for number in numbers})
    assert begin(stage.connection, topology, order, scope, wait_s=0) == dict.fromkeys(numbers)
    queued = tell_job(stage.connection, topology, "late", JobVerb.CANCEL, by="", why="", wait_s=0)
    assert queued == dict.fromkeys(numbers), "also where its begin waits for a worker"
    worker = stage.worker("last")
    wait_for(
        lambda: len(parts_of(stage.connection, topology).get("late", {})) == PARTITIONS,
        "all know the job",
        timeout_s=30,
    )
    parts = parts_of(stage.connection, topology)["late"]
    assert [(part.state, part.looked) for part in parts.values()] == [("cancelled", 0)] * PARTITIONS
    assert retryapp(stage, "job", "show", *app, "nosuch", "--watch")[1]["found"] is False
    assert worker.stop() == 0

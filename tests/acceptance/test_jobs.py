"""A job on real workers: the letters of one cause, at a rate, paused and resumed, over kills of worker and terminal."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for
from harness.terminal import begin, retryapp

from retryapp.core.record import idempotency_key
from retryapp.lookup.handler_jobs import HandlerJobs
from retryapp.runtime.machine.clock import SystemClock

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(240)]
PARTITIONS = 3


def test_the_letters_of_one_cause_are_replayed_once(stage: Stage) -> None:
    """Found, previewed, replayed at a rate, paused, resumed; the worker and the terminal are killed amid it."""
    topic, mended = stage.main_topic(partitions=PARTITIONS), threading.Event()
    stage.program(HandlerSpec(topic=topic, policy="50ms"))
    answers = {0: Answer(422), 1: Answer(500), 2: Answer(503)}
    gate = Gate()

    def rule(visit: Visit) -> Answer:
        if not mended.is_set() or visit.facts["id"] % 3:
            return answers[visit.facts["id"] % 3]
        # else the job may be over before the commands about it have started, where the machine is busy
        return Answer(200, gate=gate if len(stage.service.visits) > before + 30 else None)

    stage.service.rule = rule
    stage.produce(topic, [{"id": n} for n in range(600)])
    first = stage.worker("killed")
    topology, evidence = stage.topology(topic), stage.evidence(topic)
    wait_for(lambda: len(evidence.records(topology.dlq)) == 600, "all are dead", timeout_s=90)
    app = ("-A", "app")
    code, said = retryapp(stage, "dead", "replay", *app, "--all", "--preview")
    assert (code, said["preview"]["letters"], len(said["preview"]["causes"])) == (0, 600, 2)
    cause = next(each for each in said["preview"]["causes"] if "never take it" in each["cause"])
    assert cause["letters"] == 200
    assert retryapp(stage, "dead", "replay", *app, "--message", "500 FROM", "--preview")[1]["preview"]["letters"] == 200
    before, tried = len(stage.service.visits), Counter(visit.failure_id for visit in stage.service.visits)
    mended.set()
    chosen = ("--cause", cause["cause_id"], "--rate", "10/s", "--by", "ann", "--why", "service is back", "--yes")
    terminal = begin(stage, "dead", "replay", *app, *chosen)
    wait_for(lambda: len(stage.service.visits) > before + 10, "replays have begun", timeout_s=60)
    terminal.kill()
    terminal.communicate()
    first.kill()
    second = stage.worker("second")
    wait_for(lambda: len(stage.service.visits) > before + 25, "they go on", timeout_s=60)
    (job,) = retryapp(stage, "job", "list", *app)[1]["jobs"]
    assert (job["state"], job["verb"], job["by"]) == ("running", "replay", "ann")
    assert re.fullmatch("[0-9a-f]{10}", job["job"])
    assert retryapp(stage, "job", "pause", *app, job["job"], "--why", "lunch")[0] == 0
    done = retryapp(stage, "job", "show", *app, job["job"])[1]
    assert (done["state"], done["paused"]) == ("paused", "lunch")
    gate.open()
    wait_for(lambda: evidence.waiting() == 0, "what was replayed is done", timeout_s=60)
    assert retryapp(stage, "job", "show", *app, job["job"])[1]["done"] == done["done"] < 200
    assert retryapp(stage, "job", "resume", *app, job["job"], "--why", "fed")[0] == 0
    code, ended = retryapp(stage, "job", "show", *app, job["job"], "--watch")
    assert (code, ended["state"], ended["done"], ended["refused"]) == (0, "ended", 200, {})
    wait_for(lambda: evidence.waiting() == 0, "nothing waits", timeout_s=60)
    again = Counter(visit.failure_id for visit in stage.service.visits if visit.replays == 1)
    assert len(again) == 200
    twice = {name: number for name, number in again.items() if number > 1}
    assert len(twice) <= 10, "only what ran when the worker was killed runs again"
    assert all(visit.idempotency_key == idempotency_key(visit.failure_id) for visit in stage.service.visits)
    assert {tried[name] for name in again} == {1}
    total = evidence.balance()
    assert (total.received, total.done, total.dead, total.lost) == (600, 200, 400, 0)
    code, said = retryapp(stage, "dead", "replay", *app, "--cause", cause["cause_id"], "--preview")
    assert (code, said["preview"]["letters"], said["preview"]["refused"]) == (1, 0, {"recovered": 200})
    jobs = HandlerJobs(stage.connection, topology, SystemClock().wall_ms)  # as a program has them
    found = asyncio.run(jobs.preview("discard", reason="rejected", message="never take it"))
    assert (found.letters, found.facts["refused"]) == (0, {"recovered": 200})
    found = asyncio.run(jobs.preview("discard", all=True))
    assert (found.letters, sum(each["letters"] for each in found.facts["causes"])) == (400, 400)
    assert len(found.facts["samples"]) == 5
    job, told = asyncio.run(jobs.begin(found, why="test data", by="cron", rate="1/m"))
    assert {event and event.refused for event in told.values()} == {None}
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        told = asyncio.run(jobs.command(verb, job, why=verb, by="cron"))
        assert {event and event.after for event in told.values()} == {state}
        shown = asyncio.run(jobs.show(job))
        assert shown is not None
        assert (shown["state"], shown["by"], shown["why"], set(shown["partitions"])) == (
            state, "cron", "test data", {str(number) for number in found.counted.scope.letters}
        )  # fmt: skip
    assert asyncio.run(jobs.command("cancel", job, why="again")) == {}
    few = shown["done"]
    code, ended = retryapp(stage, "dead", "discard", *app, "--all", "--why", "test data", "--yes")
    words = {"replayed": 200} | ({"discarded": few} if few else {})
    assert (code, ended["done"], ended["refused"]) == (0, 400 - few, words)
    assert (ended["passed"], ended["letters"]) == (200 + few, 400 - few), "as the preview has said"
    code, said = retryapp(stage, "job", "refused", *app, ended["job"])
    named = [letter for letter in said["letters"] if letter["refused"] == "replayed"]
    assert (code, {letter["failure_id"] for letter in named}) == (0, set(again))
    assert {letter["text"] for letter in named} == {"it is recovered already"}
    assert second.stop() == 0

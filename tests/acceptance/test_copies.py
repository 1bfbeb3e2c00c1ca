"""Without transactions a killed worker leaves copies; they are dropped before the handler, and counted."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from harness import HandlerSpec, Stage, Worker, wait_for

from retryapp.ledger import take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(150)]

COUNT = 12


def live(stage: Stage, topic: str, name: str, **crash: object) -> Worker:
    """Start a worker that dies at a call on a record's way, or one that lives."""
    stage.program(
        HandlerSpec(topic=topic, policy="4s", max_crashes=9),
        options={"delivery": "at_least_once"},
        app_options={"datadir": str(stage.folder / "data")},
        **({"crash": {"holding": "", "after": 0, **crash}} if crash else {}),
    )
    return stage.worker(name, ready=False)


def test_what_a_killed_worker_has_handed_off_is_not_handled_again(stage: Stage) -> None:
    """One dies between the tier records and the offset, the next one between the redeliveries and their rows."""
    topic = stage.main_topic()
    first = live(
        stage, topic, "first", point="PlainLane._commit_offsets", moment="before", holding="publishes", after=1
    )
    first.wait_ready()
    stage.produce(topic, [{"id": n, "fail": 1} for n in range(COUNT)])
    first.wait(30)
    evidence = stage.evidence(topic)
    waiting = {m.failure_id for _, m in evidence.retries()}
    assert waiting, "it died behind some hand-offs"
    second = live(stage, topic, "second", point="PlainLane._log", moment="before", holding="removes")
    second.wait(60)
    fired = {m.failure_id for _, m in evidence.redeliveries()}
    assert fired, "it died behind some redeliveries"
    third = live(stage, topic, "third")
    third.wait_ready()
    stage.wait_settled(topic)
    visits = Counter((visit.failure_id, visit.attempt) for visit in stage.service.of(topic))
    assert stage.service.done(topic) == set(range(COUNT))
    assert {visits[failure_id, 1] for failure_id in waiting} == {1}
    last = Counter(
        visit.failure_id for visit in stage.service.of(topic) if visit.pid == third.pid and visit.attempt == 2
    )
    assert set(last.values()) == {1}, "the second may have begun some when it died; the third has each once"
    twice = Counter(m.failure_id for _, m in evidence.redeliveries())
    assert {failure_id for failure_id, n in twice.items() if n > 1} >= fired
    dropped = re.findall(r"retryapp.copy_dropped .* attempt=1$", second.log + third.log, re.MULTILINE)
    assert dropped, "what was handed off came again; on a slow start rows are due before, and the third drops it"
    wait_for(lambda: copies_dropped(third, topic) >= len(fired), "all copies are counted")
    ledger = take_ledger(stage.connection, stage.topology(topic), copies_allowed=True)
    assert (ledger.total.received, ledger.total.done, ledger.problems) == (COUNT, COUNT, ())


def copies_dropped(worker: Worker, topic: str) -> float:
    """Return what a worker has counted."""
    text = worker.get("/retries/metrics")[1]
    found = re.search(rf'^retryapp_copies_dropped_total{{handler="{re.escape(topic)}"}} (\S+)$', text, re.MULTILINE)
    assert found, text[:2000]
    return float(found[1])

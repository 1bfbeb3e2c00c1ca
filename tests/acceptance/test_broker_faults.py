"""A broker that goes away and comes back in mid-run, or is gone when the worker has to stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance.books import check_books
from harness import Answer, Gate, HandlerSpec, Stage, wait_for
from harness.brokers import running_broker
from harness.markers import dropped_markers

from retryapp.broker import Broker
from retryapp.ledger import Fault, take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def own_broker(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(cache_dir, data=tmp_path_factory.mktemp("own-broker")) as started:
        yield started


@pytest.fixture
def bootstrap(own_broker: Broker) -> str:
    """Of the broker of these tests, which runs when the test begins."""
    own_broker.start()
    return own_broker.bootstrap


def test_restart_in_mid_run(stage: Stage, own_broker: Broker) -> None:
    """The broker is killed twice under load: nothing lost, nothing handed on twice.

    Not stopped in good order: as the only broker it may lose commits then (docs/reliability.md, what no client can
    prevent). Three brokers are (test_three_brokers.py). Where its log says that it dropped markers of the group all the
    same, as a loaded one may at its start, what it left without an end may be there twice.
    """
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="300ms 600ms", concurrency=4))
    worker = stage.worker()
    load(stage, topic, 0)
    wait_for(lambda: len(stage.service.done(topic)) > 50, "some are done")
    own_broker.kill()
    seen = len(stage.service.visits)
    own_broker.start()
    load(stage, topic, 200)
    wait_for(lambda: len(stage.service.visits) > seen + 100, "it goes on")
    own_broker.kill()
    own_broker.start()
    load(stage, topic, 400)
    stage.evidence(topic).wait_settled(timeout_s=90)
    copied = dropped_markers(own_broker, stage.group) > 0
    problems = take_ledger(stage.connection, stage.topology(topic)).problems
    assert {problem.fault for problem in problems} <= ({Fault.TWICE, Fault.AHEAD, Fault.COUNTS} if copied else set())
    check_books(stage, topic, 600, (300, 600), copied=copied)
    assert not worker.ended(), "the same process lived through it"
    assert worker.stop() == 0


def load(stage: Stage, topic: str, start: int) -> None:
    """Publish 200 records: a quarter each fails never, once, twice, always."""
    stage.produce(topic, [{"id": n, "fail": n % 4} for n in range(start, start + 200)])


def test_term_with_the_broker_gone(stage: Stage, own_broker: Broker) -> None:
    """A worker whose broker is gone stops on TERM within the 4 s that a process runner leaves it."""
    topic = stage.main_topic()
    gate = Gate()
    stage.service.rule = lambda visit: Answer(200, gate=gate if visit.facts["id"] == "hangs" else None)
    stage.program(HandlerSpec(topic=topic), options={"grace": "1s"})
    worker = stage.worker()
    stage.produce(topic, [{"id": "fine"}, {"id": "hangs"}])
    wait_for(lambda: len(stage.service.visits) == 2, "both are delivered")
    own_broker.kill()
    started = time.monotonic()
    worker.stop(15)
    took_s = time.monotonic() - started
    gate.open()
    assert worker.process.returncode == 0, worker.log
    assert took_s < 4.0
    assert "Traceback" not in worker.log

"""`retryapp worker --processes`: several real workers from one command: their places and their ends."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections import Counter

import psutil
import pytest
from harness import HandlerSpec, Stage, Worker, wait_for
from harness.workers import ask

from retryapp.guardian import is_alive

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]

PLACE = re.compile(r"^retryapp: \S+ (worker-\d+): data (\S+), pages (http://\S+)/retries/$", re.MULTILINE)


def start(stage: Stage, *options: str) -> Worker:
    """Run the command in the stage's folder."""
    return stage.start("all", [sys.executable, "-m", "retryapp.cli.main", "worker", "app", *options])


def places(worker: Worker, count: int) -> list[tuple[str, str, str]]:
    """Wait until so many processes have logged their places and are ready."""
    found = wait_for(lambda: (m := PLACE.findall(worker.log))[count - 1 :] and m, f"{count} places are logged")
    assert len(found) == count, worker.log
    for *_, url in found:
        wait_for(lambda url=url: ask(f"{url}/retries/ready")[0] == 200, f"{url} is ready", timeout_s=60)
    return found


def children(worker: Worker) -> list[psutil.Process]:
    """Return the worker processes, in the order of their ids."""
    found = psutil.Process(worker.pid).children()
    return sorted(found, key=lambda child: child.pid)


def test_two_processes_share_the_work_and_one_signal_stops_both(stage: Stage) -> None:
    """A folder and a port each, records handled by both, and 0 within the grace after SIGTERM."""
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic))
    worker = start(stage, "--processes", "2")
    found = places(worker, 2)
    assert {number for number, *_ in found} == {"worker-1", "worker-2"}
    assert len({folder for _, folder, _ in found}) == len({url for *_, url in found}) == 2
    pids = {child.pid for child in children(worker)}
    assert len(pids) == 2
    count = stage.produce(topic, [{"id": n, "fail": n % 3} for n in range(120)], partitions=4)
    wait_for(lambda: stage.service.done(topic) == set(range(count)), "all are done")
    stage.wait_settled(topic)
    assert {visit.pid for visit in stage.service.of(topic)} == pids
    assert Counter(visit.facts["fail"] for visit in stage.service.of(topic)) == {0: 40, 1: 80, 2: 120}
    assert not stage.evidence(topic).repeated_handoffs()
    for *_, url in found:  # each shows what the other has

        def everywhere(url: str = url) -> bool:
            page = json.loads(ask(f"{url}/retries/{topic}/?format=json")[1])
            return [each["state"] for each in page["everywhere"]] == ["open"] * 4 and not page["handler"]["group"][
                "silent"
            ]

        wait_for(everywhere, f"{url} shows the whole group", timeout_s=20)
    assert worker.stop() == 0
    assert all(f"[{pid}]" in worker.log for pid in pids), "log lines say whose they are"
    assert "Traceback" not in worker.log


def test_a_missing_topic_is_said_once(stage: Stage) -> None:
    """Each process said it, and the command that the others are stopped."""
    topic = f"nowhere-{stage.group}"
    stage.program(HandlerSpec(topic=topic))
    worker = start(stage, "--processes", "2")
    assert worker.wait(40) == 3
    (line,) = worker.log.splitlines()
    assert f"topic {topic!r} does not exist" in line


@pytest.mark.extended
def test_workers_stop_when_their_starter_is_killed(stage: Stage) -> None:
    """They stop as on SIGTERM and give their records back; nothing is left behind."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic))
    worker = start(stage, "--processes", "2")
    places(worker, 2)
    left = children(worker)
    stage.produce(topic, [{"id": n} for n in range(20)])
    wait_for(lambda: stage.service.done(topic) == set(range(20)), "all are done")
    worker.signal(signal.SIGKILL)
    worker.wait(10)
    wait_for(lambda: not any(map(is_alive, left)), "both have ended")
    assert stage.evidence(topic).unsettled() == 0

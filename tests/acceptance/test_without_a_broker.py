"""What a worker says while its broker does not answer: what it knew last and since when, never 0."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import HandlerSpec, Stage, Worker, wait_for
from harness.brokers import running_broker
from harness.stage import open_stage
from harness.terminal import retryapp

from retryapp.broker import Broker
from retryapp.runtime.observe.contact import SILENT_S

RECORDS = 60


@pytest.mark.broker
@pytest.mark.acceptance
@pytest.mark.extended
@pytest.mark.timeout(240)
def test_a_worker_whose_broker_does_not_answer_shows_what_it_knew_last(cache_dir: Path, tmp_path: Path) -> None:
    """Not ready within seconds; pages and `top` show old numbers as old, gauges vanish, the log stays short."""
    (tmp_path / "stage").mkdir()
    with running_broker(cache_dir) as broker, open_stage(broker.bootstrap, tmp_path / "stage") as stage:
        topic = stage.main_topic()
        stage.program(HandlerSpec(topic=topic, policy="10m 20m"))
        worker = stage.worker()
        stage.produce(topic, [{"id": n, "fail": 9} for n in range(RECORDS)])
        wait_for(lambda: handler_of(worker)["pending"] == RECORDS, "all records wait")
        pause(broker, signal.SIGSTOP)
        try:
            while_silent(stage, worker, broker)
        finally:
            pause(broker, signal.SIGCONT)
        worker.wait_ready(90)
        handler = handler_of(worker)
        assert (handler["pending"], handler["as_of_ms"]) == (RECORDS, None)
        assert sum(worker.series("retryapp_pending_records").values()) == RECORDS
        worker.wait_for_line(r"A broker answers again: before, broker \S+ has not answered for \d+ s")


def while_silent(stage: Stage, worker: Worker, broker: Broker) -> None:
    """Look at the worker: after a few seconds with open lanes, later with closed ones and so without tables."""
    stopped_s, log_chars = time.monotonic(), len(worker.log)
    wait_for(lambda: worker.get("/retries/ready")[0] == 503, "it is not ready", timeout_s=2 * SILENT_S)
    shows_what_it_knew(stage, worker, broker)
    wait_for(lambda: handler_of(worker)["partitions_open"] == 0, "its lanes are closed", timeout_s=80)
    shows_what_it_knew(stage, worker, broker)
    (figures,) = top(stage, "-A", "app")["handlers"]
    assert figures["pending"] == RECORDS, "the broker cannot name the group's hosts: it looks on this machine"
    silent_s = time.monotonic() - stopped_s
    (seconds,) = worker.series("retryapp_broker_silent_seconds").values()
    assert silent_s - 3 < seconds < silent_s + 3
    lines = [line for line in worker.log[log_chars:].splitlines() if "[WARNING]" in line or "[ERROR]" in line]
    assert len([line for line in lines if f"broker {broker.bootstrap} has not answered for" in line]) == 1, lines
    assert len(lines) <= 25, lines
    assert "Traceback" not in worker.log[log_chars:]


def shows_what_it_knew(stage: Stage, worker: Worker, broker: Broker) -> None:
    """Ask readiness, page, metrics and `top`."""
    said = re.compile(rf"broker {re.escape(broker.bootstrap)} has not answered for \d+ s")
    status, body = worker.get("/retries/ready")
    assert status == 503
    assert said.match(json.loads(body)["error"]["message"])
    handler = handler_of(worker)
    assert (handler["pending"], handler["dead"], handler["unknown_partitions"]) == (RECORDS, 0, [])
    assert handler["as_of_ms"] is not None
    assert said.search(worker.get("/retries/")[1])
    assert worker.series("retryapp_pending_records") == worker.series("retryapp_dead_letters") == {}
    assert [*worker.series("retryapp_unknown_partitions").values()] == [2]
    shown = top(stage, "--url", worker.url)
    (figures,) = shown["handlers"]
    assert (figures["pending"], figures["as_of_ms"]) == (RECORDS, handler["as_of_ms"])
    assert said.search(shown["note"])


def pause(broker: Broker, number: signal.Signals) -> None:
    """Stop or continue the broker's process."""
    assert broker.pid is not None
    os.kill(broker.pid, number)


def handler_of(worker: Worker) -> dict[str, Any]:
    """Return the totals of its handler, as its first page has them."""
    (handler,) = json.loads(worker.get("/retries/?format=json")[1])["handlers"]
    found: dict[str, Any] = handler["group"]
    return found


def top(stage: Stage, *place: str) -> Any:
    """Return what `retryapp top --json` prints."""
    code, shown = retryapp(stage, "top", *place)
    assert code == 0
    return shown

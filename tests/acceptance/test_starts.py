"""What a worker says when it starts, in which form, and where its metrics are: the real command."""

from __future__ import annotations

import json
import re
import sys

import pytest
from harness import HandlerSpec, Stage, Worker, wait_for
from harness.workers import ask

from retryapp.broker.probe import free_ports

pytestmark = [pytest.mark.broker, pytest.mark.acceptance]


def start(stage: Stage, *options: str) -> Worker:
    """Run `retryapp worker` in the stage's folder, until it says that it is ready."""
    stage.program(HandlerSpec(topic=stage.main_topic(partitions=4), policy="1h"))
    worker = stage.start("brief", [sys.executable, "-m", "retryapp.cli.main", "worker", "app", *options])
    wait_for(lambda: worker.ended() or "retryapp.ready" in worker.log, "it is ready", timeout_s=60)
    return worker


def test_a_start_says_what_matters_in_a_few_lines(stage: Stage) -> None:
    """Place, and partitions, waiting records and pages when it is ready; no line for each lane."""
    worker = start(stage)
    lines = worker.log.splitlines()
    assert len(lines) <= 10, worker.log
    port = stage.env["RETRYAPP_WEB_PORT"]
    assert f"retryapp.ready: 4 partitions, 0 waiting, pages at http://127.0.0.1:{port}/retries/" in lines[-1]
    assert not re.search("lane_opened|Starting|Updating subscribed", worker.log)
    assert worker.stop() == 0
    assert "Stopping" in worker.log, "what comes later is said as ever"


def test_log_lines_are_json_on_request_and_metrics_have_a_port(stage: Stage) -> None:
    """Each line is an object with the facts of its event, also that of a failure; without pages there are metrics."""
    (port,) = free_ports(1)
    stage.env["RETRYAPP_LOG_FORMAT"] = "json"
    worker = start(stage, "--without-web", "--metrics-port", str(port))
    (topic,) = stage.handlers
    stage.produce(topic, [{"id": 1, "fail": 9}])
    wait_for(lambda: "retryapp.new_cause" in worker.log, "the failure is logged")
    status, text = ask(f"http://127.0.0.1:{port}/metrics")
    assert (status, bool(re.search(r"^retryapp_deliveries_total\{", text, re.MULTILINE))) == (200, True)
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    (ready,) = [line for line in lines if line["message"].startswith("retryapp.ready")]
    assert (ready["level"], ready["logger"], ready["partitions"], ready["waiting"]) == ("INFO", "retryapp", 4, 0)
    assert f"metrics at http://127.0.0.1:{port}/metrics" in ready["message"]
    (cause,) = [line for line in lines if line["message"] == "retryapp.new_cause"]
    assert (cause["topic"], cause["attempt"]) == (topic, 1)

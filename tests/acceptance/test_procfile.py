"""The Procfile as `honcho start` runs it: broker, service and two workers, on ports of their own."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from harness import Worker, wait_for
from harness.operator import Operator

from retryapp.broker.probe import free_ports
from retryapp.kafka import KafkaConnection, read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(120)]

WORKERS = 2
"""One for each partition of the demo's main topic."""


@pytest.fixture
def connection() -> KafkaConnection:
    return KafkaConnection(f"127.0.0.1:{free_ports(1)[0]}")


@pytest.fixture
def honcho(connection: KafkaConnection, project_root: Path, tmp_path: Path) -> Iterator[Worker]:
    """A run that is up: the workers have waited for the broker if they were first, and every partition has its lane."""
    service, pages = free_ports(2)
    _, _, broker = connection.bootstrap.rpartition(":")
    procfile = (project_root / "Procfile").read_text().replace("broker run", f"broker run --port {broker}")
    procfile = procfile.replace("retryapp.demo.service", f"retryapp.demo.service --port {service}")
    (tmp_path / "Procfile").write_text(procfile)
    env = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RETRYAPP_DEMO_BROKER": connection.bootstrap,
        "RETRYAPP_DEMO_SERVICE_URL": f"http://127.0.0.1:{service}",
        "RETRYAPP_WEB_PORT": str(pages),
    }
    command = [sys.executable, "-m", "honcho", "start"]
    run = Worker("honcho", command, log_file=tmp_path / "honcho.log", cwd=tmp_path, env=env).start()
    try:
        wait_for(lambda: run.ended() or run.log.count("retryapp.ready") >= WORKERS, "both are ready", timeout_s=60)
        assert not run.ended(), run.log
        yield run
    finally:
        run.kill()
        print(run.log[-6000:])  # noqa: T201 - for the failure report


def test_it_delivers_and_stops_on_a_signal(honcho: Worker, connection: KafkaConnection) -> None:
    """Flights are fed, fail and wait; a record that is sent by hand ends; then all stop cleanly."""
    Operator(connection.bootstrap).publish("flights", b"not a flight", key=b"k")
    letters = partial(read_topic, connection, "demo.flights.dlq")
    wait_for(lambda: (b"k", b"not a flight") in [(letter.key, letter.value) for letter in letters()], "it is dead")
    honcho.wait_for_line(r"retryapp\.retries")
    honcho.signal(signal.SIGTERM)
    honcho.wait(30)
    assert "SIGKILL" not in honcho.log, "honcho sends it 5 seconds after TERM"
    assert set(re.findall(r"(worker\d)\.1 stopped \(rc=0\)", honcho.log)) == {"worker1", "worker2"}

"""`retryapp broker` as a person uses it: real commands, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from retryapp.broker.probe import broker_count, free_ports

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]

RETRYAPP = [sys.executable, "-m", "retryapp.cli.main"]


def retryapp(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command with --json; return its exit code and the object that it printed."""
    result = subprocess.run([*RETRYAPP, *arguments, "--json"], capture_output=True, text=True, timeout=100, check=False)
    return result.returncode, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def data(tmp_path: Path) -> Iterator[str]:
    """A data folder; its broker is stopped."""
    folder = str(tmp_path / "broker")
    yield folder
    retryapp("broker", "stop", "--data", folder)


def test_start_status_stop(data: str) -> None:
    """Each is fine to repeat; status is 1 when nothing runs."""
    port = str(free_ports(1)[0])
    assert retryapp("broker", "status", "--data", data) == (1, {"state": "stopped"})
    code, started = retryapp("broker", "start", "--data", data, "--port", port)
    assert (code, started["state"], started["started"]) == (0, "running", True)
    assert started["bootstrap"] == f"127.0.0.1:{port}"
    code, again = retryapp("broker", "start", "--data", data)
    assert (code, again["started"], again["pid"]) == (0, False, started["pid"])
    code, moved = retryapp("broker", "start", "--data", data, "--port", str(int(port) + 1))
    assert (code, moved["error"]["type"]) == (3, "BrokerFailedError"), "it runs on another port"
    code, status = retryapp("broker", "status", "--data", data)
    assert (code, status["state"], status["pid"]) == (0, "running", started["pid"])
    code, refused = retryapp("broker", "start", "--data", f"{data}-2", "--port", port)
    assert (code, refused["error"]["type"]) == (3, "PortTakenError")
    code, other = retryapp("broker", "stop", "--data", data, "--port", str(int(port) + 1))
    assert (code, other["error"]["type"]) == (2, "UsageError"), "a port that is given must be the broker's"
    same = ("broker", "stop", "--data", data, "--port", port)
    assert retryapp(*same) == (0, {"state": "stopped", "was_running": True})
    assert broker_count(int(port)) == 0
    assert retryapp("broker", "stop", "--data", data) == (0, {"state": "stopped", "was_running": False})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`retryapp broker run`, and what it has printed once the broker is up."""
    (port,) = free_ports(1)
    command = [*RETRYAPP, "broker", "run", "--data", str(tmp_path), "--port", str(port), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_stops_within_four_seconds(run: tuple[Any, dict[str, Any]], number: signal.Signals) -> None:
    """A process runner kills what takes longer; the broker would be left behind."""
    process, running = run
    assert broker_count(running["port"]) == 1
    began = time.monotonic()
    process.send_signal(number)
    assert process.wait(10) == 0
    assert time.monotonic() - began < 4
    assert not psutil.pid_exists(running["pid"])


def test_run_says_when_the_broker_dies(run: tuple[Any, dict[str, Any]]) -> None:
    """Exit code 3, so that a runner notices."""
    process, running = run
    os.kill(running["pid"], signal.SIGKILL)
    last = json.loads(process.stdout.readline())
    assert process.wait(10) == 3
    assert "exited with code -9" in last["error"]["message"]

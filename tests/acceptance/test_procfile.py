"""The Procfile as `honcho start` runs it: broker, service and two workers, on ports of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retryapp.broker.probe import free_ports
from retryapp.kafka import KafkaConnection, read_topic

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(90)]

LANES = 4
"""One for each partition of the demo's main topic."""
KILL_AFTER_S = 5.0
"""Honcho's patience between TERM and KILL."""


class Honcho:
    """One run of the Procfile; its output is read in a thread."""

    def __init__(self, folder: Path, procfile: str) -> None:
        broker, service, pages = free_ports(3)
        procfile = procfile.replace("broker run", f"broker run --port {broker}")
        procfile = procfile.replace("retryapp.demo.service", f"retryapp.demo.service --port {service}")
        (folder / "Procfile").write_text(procfile)
        self.connection = KafkaConnection(f"127.0.0.1:{broker}")
        self.lines: list[tuple[float, str]] = []
        scripts = str(Path(sys.executable).parent)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "honcho", "start"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
                "RETRYAPP_DEMO_BROKER": f"127.0.0.1:{broker}",
                "RETRYAPP_DEMO_SERVICE_URL": f"http://127.0.0.1:{service}",
                "RETRYAPP_WEB_PORT": str(min(pages, 65_000)),
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def matching(self, pattern: str) -> list[tuple[float, str]]:
        """Return the lines so far that match, each with the moment at which it came."""
        return [(at_s, line) for at_s, line in list(self.lines) if re.search(pattern, line)]

    def wait_for(self, pattern: str, *, count: int = 1, timeout_s: float = 40.0) -> list[tuple[float, str]]:
        """Wait until so many lines match."""
        deadline_s = time.monotonic() + timeout_s
        while len(found := self.matching(pattern)) < count:
            tail = "".join(line for _, line in self.lines[-30:])
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{tail}"
            assert time.monotonic() < deadline_s, f"no line {pattern!r} ({count} times):\n{tail}"
            time.sleep(0.05)
        return found

    def wait(self) -> int:
        """Wait for the end of all."""
        code = self.process.wait(30)
        self._reader.join(5)
        return code

    def close(self) -> None:
        """Let the output go; the run must have ended."""
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def pid_of(self, name: str) -> int:
        """Return the process id of one of its processes."""
        ((_, line),) = self.wait_for(rf"system +\| {name}\.1 started")
        found = re.search(r"pid=(\d+)", line)
        assert found is not None
        return int(found.group(1))


@pytest.fixture
def honcho(project_root: Path, tmp_path: Path) -> Iterator[Honcho]:
    """A run that is up: the workers waited for the broker, and every partition has its lane."""
    run = Honcho(tmp_path, (project_root / "Procfile").read_text())
    try:
        run.wait_for(r"retryapp\.lane_opened", count=LANES)
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGTERM)
            try:
                run.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(run.process.pid, signal.SIGKILL)
                run.process.wait()
        run.close()


def assert_stopped_in_time(run: Honcho) -> None:
    """Both workers ended by themselves, within 4 seconds of being asked to."""
    asked = {
        name: at_s for at_s, line in run.matching("sending SIGTERM to worker") for name in re.findall(r"worker\d", line)
    }
    ended = {
        name: at_s
        for at_s, line in run.matching(r"worker\d\.1 stopped \(rc=0\)")
        for name in re.findall(r"worker\d", line)
    }
    assert run.matching("SIGKILL") == []
    assert set(asked) == set(ended) == {"worker1", "worker2"}
    assert max(ended[name] - asked[name] for name in asked) < KILL_AFTER_S - 0.5


def test_it_delivers_and_stops_on_a_signal(honcho: Honcho) -> None:
    """Flights are fed, fail and wait; a record that is sent by hand ends; then all stop cleanly."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": honcho.connection.bootstrap})
    producer.produce("flights", b"not a flight", key=b"k")
    assert producer.flush(10) == 0
    honcho.wait_for(r"retryapp\.dead_lettered.*undecodable")
    assert (b"k", b"not a flight") in [(r.key, r.value) for r in read_topic(honcho.connection, "demo.flights.dlq")]
    honcho.wait_for(r"retryapp\.retry_scheduled")

    honcho.process.send_signal(signal.SIGTERM)
    honcho.wait()
    assert_stopped_in_time(honcho)


def test_a_broker_that_ends_takes_all_down_cleanly(honcho: Honcho) -> None:
    """Honcho stops all at the first exit: the workers have to end without a broker."""
    os.kill(honcho.pid_of("broker"), signal.SIGTERM)
    honcho.wait()
    assert_stopped_in_time(honcho)

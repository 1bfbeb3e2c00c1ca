"""The README's program and the commands of docs/getting-started.md, run as a reader would, on a broker of their own."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Worker, wait_for
from one_broker import RunBroker

from retryapp.broker.probe import free_ports

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(180)]

SET_UP = ["make install", ". .venv/bin/activate"]
"""What the tests' own environment stands for."""


class Reader:
    """Somebody who copies the README into a terminal; only the ports differ, so that nothing of theirs is touched."""

    def __init__(self, root: Path, folder: Path) -> None:
        (self.broker_port,) = free_ports(1)
        section = (root / "docs" / "getting-started.md").read_text().split("## Your own program")[1]
        self.first, self.second = (
            [line for line in block.splitlines() if line] for block in re.findall(r"```sh\n(.*?)```", section, re.S)[:2]
        )
        readme = (root / "README.md").read_text()
        (program,) = re.findall(r"`billing.py`:\n\n```python\n(.*?)```", readme, re.S)
        (folder / "billing.py").write_text(program.replace("localhost:9092", f"localhost:{self.broker_port}"))
        self.folder = folder
        self.workers: list[Worker] = []

    def run(self, line: str) -> str:
        """Run one line; a worker stays in the background.

        Returns:
            What it printed.
        """
        words = shlex.split(line.replace("broker start", f"broker start --port {self.broker_port}"))
        command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
        if words[:2] == ["retryapp", "worker"]:
            started = Worker("worker", command, log_file=self.folder / "worker.log", cwd=self.folder).start()
            self.workers.append(started)
            return ""
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def reader(broker: RunBroker, project_root: Path, tmp_path: Path) -> Iterator[Reader]:
    """A reader in an empty folder; the session's broker is asked for first, so that a machine without Java skips."""
    assert broker.bootstrap
    made = Reader(project_root, tmp_path)
    yield made
    for worker in made.workers:
        worker.kill()
    made.run("retryapp broker stop")


def test_your_own_program(reader: Reader) -> None:
    """The first order waits for its second attempt, the second one is a dead letter; and the broker stops."""
    assert reader.first[:2] == SET_UP
    for line in reader.first[2:]:
        reader.run(line)
    (worker,) = reader.workers
    wait_for(lambda: "retryapp.ready: 4 partitions, 0 waiting" in worker.log, "the worker serves all partitions")
    assert "http://127.0.0.1:" in worker.log.splitlines()[0]
    first_order, second_order, pending, dead, stop_broker = reader.second
    reader.run(first_order)
    reader.run(second_order)
    wait_for(lambda: "1 of 1 waiting" in reader.run(pending), "the first order waits")
    wait_for(lambda: "rejected" in reader.run(dead), "the second order is dead")
    assert "5m" in reader.run(pending)
    assert worker.stop() == 0
    assert "stopped" in reader.run(stop_broker)

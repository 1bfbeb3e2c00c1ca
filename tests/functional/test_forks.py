"""Processes that are forked, not started, end as those do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.forks import fork

from retryapp.stage import wait_for

PROGRAM = """
import os, sys, time
print(sys.argv, os.getcwd(), os.environ["WORD"], flush=True)
time.sleep(60)
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    with (tmp_path / "in").open("w+") as given, (tmp_path / "out").open("w") as said:
        yield [given.fileno(), said.fileno(), said.fileno()]


def test_a_command_has_its_words_and_its_exit_code(files: list[int], tmp_path: Path) -> None:
    """As an operator's shell would see it."""
    assert fork(["retryapp", "nothing"], files, cwd=tmp_path, env=os.environ).wait(60) == 2
    assert fork(["retryapp", "--version"], files, cwd=tmp_path, env=os.environ).wait(60) == 0
    problem, version = (tmp_path / "out").read_text().strip().splitlines()
    assert "No such command 'nothing'" in problem
    assert version.startswith("retryapp ")


def test_a_worker_has_its_folder_and_environment_and_ends_by_a_signal(files: list[int], tmp_path: Path) -> None:
    """In a session of its own, so that a signal to the test's reaches it no more than a started one."""
    (tmp_path / "app.py").write_text(PROGRAM)
    worker = fork(["faust", "-A", "app", "worker"], files, cwd=tmp_path, env={**os.environ, "WORD": "own"})
    begun = f"'-A', 'app', 'worker'] {tmp_path} own"
    wait_for(lambda: begun in (tmp_path / "out").read_text() or worker.poll() is not None, "it prints what it has")
    assert worker.poll() is None, (tmp_path / "out").read_text()
    assert os.getsid(worker.pid) == worker.pid
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait(20) == -signal.SIGKILL == worker.poll()

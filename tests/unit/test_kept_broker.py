"""The end of a broker that no process here has started; and the broker of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from retryapp.broker.kept import _gone
from retryapp.broker.node import Broker
from retryapp.stage import Run


def test_a_process_that_nobody_collects_is_gone() -> None:
    """As in a container whose first process collects no orphans."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    process = psutil.Process(child.pid)
    try:
        assert _gone(process, 20)
        assert process.status() == psutil.STATUS_ZOMBIE
    finally:
        child.wait()


def test_a_process_that_goes_on_is_not() -> None:
    """The wait is bounded."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert not _gone(psutil.Process(child.pid), 0.1)


def test_the_broker_of_a_run_is_not_fenced_on_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never starts again after a kill, which would wait for the end of the former session."""
    monkeypatch.setattr(Broker, "start", lambda _broker, **_options: None)
    with Run(tmp_path) as run:
        settings = run.broker(tmp_path)._settings
    assert settings["broker.session.timeout.ms"] == "120000"

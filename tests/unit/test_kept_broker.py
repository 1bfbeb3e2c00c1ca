"""The end of a broker that no process here has started; and the broker of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from retryapp.broker.config import properties_file
from retryapp.broker.kept import start_kept_broker, stop_kept_broker
from retryapp.broker.node import Broker, BrokerFailedError, gone
from retryapp.jvm import FolderUnusableError
from retryapp.stage import Run


def test_a_process_that_nobody_collects_is_gone() -> None:
    """As in a container whose first process collects no orphans."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    process = psutil.Process(child.pid)
    try:
        assert gone(process, 20)
        assert process.status() == psutil.STATUS_ZOMBIE
    finally:
        child.wait()


def test_a_process_that_goes_on_is_not() -> None:
    """The wait is bounded."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        assert not gone(psutil.Process(child.pid), 0.1)


def test_the_broker_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one cannot stop it, and it goes on."""

    def refuse(process: psutil.Process, _signal: int) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "send_signal", refuse)
    wait = "import sys; sys.stdin.read()"
    words = [sys.executable, "-c", wait, str(properties_file(tmp_path))]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        state = {"pid": process.pid, "port": 1, "data": str(tmp_path), "log": "broker.log", "version": "4.3.1"}
        (tmp_path / "broker.json").write_text(json.dumps(state))
        with pytest.raises(BrokerFailedError, match=rf"\(pid {process.pid}\) belongs to another user"):
            stop_kept_broker(tmp_path)
        assert (tmp_path / "broker.json").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnusableError, match="--data"):
        start_kept_broker(tmp_path, tmp_path / "file" / "data", port=9092)


def test_the_broker_of_a_run_is_not_fenced_on_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never starts again after a kill, which would wait for the end of the former session."""
    monkeypatch.setattr(Broker, "start", lambda _broker, **_options: None)
    with Run(tmp_path) as run:
        settings = run.broker(tmp_path)._settings
    assert settings["broker.session.timeout.ms"] == "120000"

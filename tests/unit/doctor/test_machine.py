"""This machine: variables, folders, room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.doctor import machine
from retryapp.doctor.findings import Severity


def test_a_misspelt_variable_is_a_warning() -> None:
    """It is ignored, so the worker starts; the finding names what was meant."""
    (found,) = machine.judge_settings({"RETRYAPP_GARCE": "60s", "RETRYAPP_GRACE": "60s"})
    assert (found.severity, found.name) == (Severity.WARNING, "variable RETRYAPP_GARCE")
    assert found.remedy == "Rename it to RETRYAPP_GRACE"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """Its nearest parent decides."""
    folder, disk = machine.judge_folder(tmp_path / "a" / "b")
    assert folder.severity is disk.severity is Severity.OK
    assert "does not exist yet" in folder.seen
    assert list(tmp_path.iterdir()) == []
    assert "does not exist yet" not in next(iter(machine.judge_folder(tmp_path))).seen


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a file stands in its way."""
    (tmp_path / "file").write_text("")
    assert next(iter(machine.judge_folder(tmp_path / "file"))).severity is Severity.PROBLEM
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = next(iter(machine.judge_folder(tmp_path / "a")))
    assert found.severity is Severity.PROBLEM
    assert str(tmp_path) in found.seen


def test_a_folder_that_may_not_be_looked_into_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another user, 0700: it was told as a fault of ours. Root may look into all, so this pretends."""
    closed, stat = tmp_path / "closed", os.stat
    closed.mkdir()

    def refusing(path: Any, **more: Any) -> os.stat_result:
        if closed in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **more)

    access = os.access
    monkeypatch.setattr(os, "stat", refusing)
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    folder, disk = machine.judge_folder(closed / "billing")
    assert (folder.severity, folder.seen) == (Severity.PROBLEM, f"{closed} cannot be looked into")
    assert disk.name == "disk"


@pytest.mark.parametrize(
    ("free", "severity"), [(2 << 30, Severity.OK), (900 << 20, Severity.WARNING), (100 << 20, Severity.PROBLEM)]
)
def test_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, severity: Severity) -> None:
    """A warning before it is a problem."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert machine.judge_disk(tmp_path).severity is severity

"""This machine: versions, folders, room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from retryapp.core.errors import JavaMissingError
from retryapp.doctor import machine
from retryapp.doctor.findings import Finding, Severity


def programs() -> dict[str, Finding]:
    """Check this installation."""
    return {finding.name: finding for finding in machine.judge_programs()}


def test_the_programs_of_this_installation_are_fine() -> None:
    """Ranges come from our own distribution."""
    found = programs()
    for name in machine.LIBRARIES:
        assert found[f"library {name}"].severity is Severity.OK
        assert found[f"library {name}"].expected.count(",") == 1
    assert found["python"].seen.startswith("3.")


def test_libraries_outside_of_their_range_and_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning and a problem, each with the command; Java is optional."""
    real = machine.metadata.version

    def version(name: str) -> str:
        if name == "rocksdict":
            raise machine.metadata.PackageNotFoundError(name)
        return "9.9" if name == "aiokafka" else real(name)

    def no_java(*_: object) -> None:
        raise JavaMissingError(17, None)

    monkeypatch.setattr(machine.metadata, "version", version)
    monkeypatch.setattr(machine, "find_java", no_java)
    found = programs()
    other, missing, java = found["library aiokafka"], found["library rocksdict"], found["java"]
    assert (other.severity, other.seen) == (Severity.WARNING, "9.9")
    assert other.remedy == f"pip install 'aiokafka{other.expected}'"
    assert (missing.severity, missing.seen) == (Severity.PROBLEM, "not installed")
    assert (java.severity, java.seen) == (Severity.NOTE, "none")


def test_ranges() -> None:
    """By numbers, not by text."""
    for version, fits in (("0.15.3", True), ("0.15.10+local.3", True), ("0.15.2", False), ("0.16.0", False)):
        assert machine.fits(version, "<0.16,>=0.15.3") is fits
    assert machine.fits("1.0", "")


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


@pytest.mark.parametrize(
    ("free", "severity"), [(2 << 30, Severity.OK), (900 << 20, Severity.WARNING), (100 << 20, Severity.PROBLEM)]
)
def test_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, severity: Severity) -> None:
    """A warning before it is a problem."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert machine.judge_disk(tmp_path).severity is severity

"""tools/prometheus.py: what it uses, what it fetches, and what it prints when it cannot."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def tool(load_tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with a cache of its own, on a machine that has nothing."""
    module: ModuleType = load_tool("prometheus")
    monkeypatch.setattr(module, "folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(module, "shutil", SimpleNamespace(which=lambda _name: None, copyfileobj=shutil.copyfileobj))
    return module


def package() -> bytes:
    """Return what `dpkg-deb --fsys-tarfile` prints of a package with the programs."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as files:
        for name in ("promtool", "prometheus"):
            entry = tarfile.TarInfo(f"./usr/bin/{name}")
            entry.size = len(b"program")
            files.addfile(entry, io.BytesIO(b"program"))
    return made.getvalue()


def on_debian(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, *, fails: int = 0) -> list[list[str]]:
    """Let apt-get and dpkg-deb be there; return what is started. The first `fails` downloads fail."""
    started: list[list[str]] = []
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/bin/{name}" if "-" in name else None)

    def run(command: list[str], *, cwd: Path | None = None, **_: Any) -> Any:
        started.append(command)
        if command[-2] == "download":
            if sum(words[-2] == "download" for words in started) <= fails:
                raise subprocess.CalledProcessError(100, command)
            assert cwd is not None
            (cwd / "prometheus_2.42.0_amd64.deb").touch()
        return SimpleNamespace(stdout=package())

    monkeypatch.setattr(tool.subprocess, "run", run)
    return started


def test_programs_on_the_path_are_used(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched; one of two is not enough."""
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/opt/{name}" if name == "promtool" else None)
    assert tool.find() is None
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/opt/{name}")
    assert tool.find() == {"promtool": Path("/opt/promtool"), "prometheus": Path("/opt/prometheus")}
    assert tool.main() == 0


def test_a_machine_without_debians_tools(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The other tests run all the same."""
    assert tool.main() == 0
    told = capsys.readouterr()
    assert (told.out, "are on PATH" in told.err) == ("", True)


@pytest.mark.parametrize("fails", [0, 1], ids=["with the machine's lists", "with lists of its own"])
def test_the_package_is_unpacked_into_the_cache(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: int
) -> None:
    """Ready to run; the next call does nothing."""
    started = on_debian(tool, monkeypatch, fails=fails)
    assert tool.main() == 0
    assert f"at most {tool.DOWNLOAD_MB} MB" in capsys.readouterr().out
    for program in tool.find().values():
        assert (program.read_text(), program.stat().st_mode & 0o777) == ("program", 0o755)
    assert sum(words[-1] == "update" for words in started) == fails
    count = len(started)
    assert tool.main() == 0
    assert len(started) == count


def test_a_download_that_fails_is_reported(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves nothing half."""
    on_debian(tool, monkeypatch, fails=2)
    assert tool.main() == 0
    assert "fetching it failed" in capsys.readouterr().err
    assert tool.find() is None

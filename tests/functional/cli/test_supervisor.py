"""The supervisor of worker processes: starts again, stops all, passes signals and output on; with fake workers."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retryapp.cli._supervisor import Relay, Restarts, Supervisor, stop_with
from retryapp.cli.console import ExitCode
from retryapp.core.schedule import fixed

SOON = Restarts(back_off=fixed("10ms", 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the fake workers count their runs."""
    return tmp_path


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
    supervisor = Supervisor([], say=lambda _: None, restarts=Restarts(), random=Random(1))
    waits = [supervisor.wait_ms(crashes) for crashes in range(1, 12)]
    assert 800 <= waits[0] <= 1_000
    assert waits[:4] == sorted(waits[:4])
    assert all(24_000 <= wait <= 30_000 for wait in waits[5:])


SUPERVISE = """
import sys
from retryapp.cli._supervisor import Relay, Restarts, Supervisor
from retryapp.core.schedule import fixed
say = lambda line: print(line, flush=True)
processes = int(sys.argv[2])
relay = Relay(sys.stdout.buffer, sys.stderr.buffer) if processes > 1 else None
restarts = Restarts(back_off=fixed(sys.argv[3], 1)) if sys.argv[3] else None
command = [sys.executable, "-c", sys.argv[1]]
sys.exit(Supervisor(command, say=say, processes=processes, restarts=restarts, relay=relay).run())
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


def supervised(program: str, *, processes: int = 1, wait: str = "1h") -> subprocess.Popen[str]:
    """Run a program under a supervisor of its own process."""
    command = [sys.executable, "-c", SUPERVISE, program, str(processes), wait]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


NUMBERED = """
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
def take():
    for number in range(100):
        try:
            (folder / f"p{{number}}").touch(exist_ok=False)
            return number
        except FileExistsError:
            pass
number = take()
signal.signal(signal.SIGTERM, lambda *_: (print("tidy", flush=True), sys.exit(0)))
print("up", number, flush=True)
while number != {who}:
    time.sleep(0.02)
while len(list(folder.glob("p*"))) < {after}:
    time.sleep(0.02)
sys.exit({code})
"""
"""Takes the next free number; process number `who` ends with `code` once so many were started."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_all(number: signal.Signals) -> None:
    """Every process gets it at once and tidies; their lines have their names; the code is that of a clean stop."""
    code = int(number == signal.SIGINT)  # as the program answers
    with supervised(OBEDIENT, processes=3) as process:
        assert process.stdout is not None
        up = [process.stdout.readline() for _ in range(3)]
        assert sorted(up) == [f"process-{n} | up\n" for n in (1, 2, 3)]
        began_s = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == code
        assert time.monotonic() - began_s < 0.8, "each takes 0.3 s to tidy: not one after the other"
        assert sorted(process.stdout) == [f"process-{n} | tidy {int(number)}\n" for n in (1, 2, 3)]


@pytest.mark.parametrize("code", [0, 2, 3, 4])
def test_the_first_end_stops_the_others_and_is_the_code(folder: Path, code: int) -> None:
    """Without restarts nobody is left with fewer processes than were asked for."""
    program = NUMBERED.format(folder=str(folder), who=1, after=3, code=code)
    with supervised(program, processes=3, wait="") as process:
        assert process.wait(10) == code
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    told = [line for line in lines if "|" not in line]
    assert len(told) == 1
    assert told[0].endswith(f"ended with exit code {code}; the others are stopped")
    assert len([line for line in lines if line.endswith("| tidy")]) == 2


def test_each_is_started_again_by_itself(folder: Path) -> None:
    """One that falls is replaced while the others run on; one that ends for good is not, and that is told."""
    program = NUMBERED.format(folder=str(folder), who=0, after=2, code=4)
    with supervised(program, processes=2, wait="10ms") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert sum(line.endswith("ended with exit code 4; it is started again in 10ms\n") for line in lines) == 1
        assert sorted(line.split(" | ")[1] for line in lines if " | " in line) == ["up 0\n", "up 1\n", "up 2\n"]
        process.terminate()
        assert process.wait(10) == 0
        assert [line.split(" | ")[1] for line in process.stdout] == ["tidy\n"] * 2
    (folder / "p0").unlink()  # the next one is number 0, which ends with 2 here: nobody starts that again
    with supervised(NUMBERED.format(folder=str(folder), who=0, after=4, code=2), processes=2, wait="10ms") as process:
        assert process.stdout is not None
        last = next(line for line in process.stdout if " | " not in line)
        assert last.endswith("ended with exit code 2 and is not started again; 1 of 2 run on\n")
        process.terminate()
        assert process.wait(10) == ExitCode.USAGE


def test_all_that_cannot_work_end_with_their_code() -> None:
    """A wrong configuration is no crash, however many have it."""
    with supervised("raise SystemExit(2)", processes=3, wait="1h") as process:
        assert process.wait(10) == ExitCode.USAGE


def test_a_process_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    """It counts as a fault of the environment."""
    said: list[str] = []
    assert Supervisor([str(tmp_path / "none")], say=said.append, restarts=None).run() == ExitCode.ENVIRONMENT
    assert len(said) == 1
    assert "cannot be started" in said[0]


class Closed(io.BytesIO):
    """A pipe that nobody reads any more."""

    def write(self, _: Any) -> int:
        """Refuse."""
        raise BrokenPipeError


def test_lines_stay_whole_and_a_closed_pipe_holds_nobody_up() -> None:
    """Stdout and stderr each to its own; a line of any length, a missing end of line; a gone reader is no end."""
    program = "import os; os.write(1, b'a\\r\\nb\\n' + b'x' * 300_000); os.write(2, b'y\\n' * 100_000)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1) as process:
        out = io.BytesIO()
        for thread in Relay(out, Closed()).attach(process, "p"):
            thread.join(10)
        assert process.wait(10) == 0
    lines = out.getvalue().split(b"\n")
    assert lines[:2] == [b"p | a", b"p | b"]
    assert b"".join(line.removeprefix(b"p | ") for line in lines[2:]) == b"x" * 300_000


def test_a_worker_whose_supervisor_is_gone_stops() -> None:
    """It gets a SIGTERM of its own; while the supervisor lives, it gets none."""
    told = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        stop_with(os.getppid(), every_s=0.01)
        assert not told.wait(0.1)
        stop_with(-1, every_s=0.01)
        assert told.wait(5)
    finally:
        signal.signal(signal.SIGTERM, before)

"""What a run starts: its processes end with it, however it ends."""

import os
import pty
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.machine import held_to
from retryapp.guardian import is_alive
from retryapp.stage import Child, ChildFailedError, NotInTimeError, Run, stop_all, wait_for

SERVER = "import time; print('ready at home', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVER
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
    "print('ready at', child.pid, flush=True); time.sleep(60)"
)
RUN = f"""
import signal, sys, time
from pathlib import Path
from retryapp.stage import Run
with Run() as run:
    parent = run.child("parent", [sys.executable, "-c", {PARENT!r}])
    if len(sys.argv) > 1:
        run.broker(Path(sys.argv[1]))
    parent.wait_for_line("ready")
    parent.signal(signal.SIGSTOP)
    print("running in", run.folder, flush=True)
    time.sleep(60)
"""

Make = Callable[[str], Child]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Start children that run a Python program."""
    with Run(tmp_path) as run:
        yield lambda program: run.child(f"child{len(run.children)}", [sys.executable, "-c", program])


def bearers(mark: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK_OF_TEST") == mark and is_alive(process):
                processes.append(process)
        except (psutil.Error, OSError):
            continue
    return processes


@pytest.mark.parametrize(
    ("number", "broker"),
    [
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        pytest.param(signal.SIGKILL, True, marks=[pytest.mark.broker, pytest.mark.extended]),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_nothing_survives_an_interrupted_run(
    number: signal.Signals, broker: bool, cache_dir: Path, tmp_path: Path
) -> None:
    """A paused child, its own child in another session, a broker, and the folder are gone."""
    mark = uuid.uuid4().hex
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, *([str(cache_dir)] if broker else [])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MARK_OF_TEST": mark, "TMPDIR": str(tmp_path)},
    )
    try:
        assert run.stdout is not None
        line = run.stdout.readline()
        assert "running in" in line
        assert len(bearers(mark)) == 4 + broker, bearers(mark)  # the run, child and grandchild, the guardian
        run.send_signal(number)
        run.wait(20)
        if number is signal.SIGKILL:
            wait_for(lambda: not bearers(mark), "all have ended", timeout_s=10)
        assert bearers(mark) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in bearers(mark):
            process.kill()
        run.communicate()


def test_a_run_that_fails_takes_its_processes_along(tmp_path: Path) -> None:
    """An error in the block ends them; a folder of the caller's own stays, with the logs."""

    def fail() -> None:
        with Run(tmp_path) as run:
            children.append(run.child("server", [sys.executable, "-c", SERVER]))
            children[0].wait_for_line("ready")
            raise LookupError

    children: list[Child] = []
    with pytest.raises(LookupError):
        fail()
    (child,) = children
    assert child.exit_code == -signal.SIGTERM
    assert "ready at home" in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "import sys; sys.exit('no broker')",
            r"ended with exit code 1 before it was ready; (?s:.)*no broker",
        ),
        ("import time; time.sleep(60)", r"was not ready within 0\.5 s"),
    ],
)
def test_a_child_that_is_not_ready_is_named_with_its_last_words(make: Make, program: str, told: str) -> None:
    """It ended too soon, or goes on without a word: the wait is bounded."""
    child = make(program)
    with pytest.raises(ChildFailedError, match=told):
        child.wait_for_line("ready", timeout_s=5 if "exit" in program else 0.5)


@pytest.mark.parametrize("end", [Child.kill, Child.stop])
def test_what_a_child_started_ends_with_it(make: Make, end: Callable[[Child], object]) -> None:
    """Also in a session of its own."""
    child = make(PARENT)
    grandchild = psutil.Process(int(child.wait_for_line(r"ready at (\d+)").group(1)))
    end(child)
    assert not is_alive(grandchild)


def test_a_stubborn_child_is_killed_after_its_time(make: Make) -> None:
    """A child that ignores TERM is killed; the others are not waited for one by one."""
    children = [make(STUBBORN), make(SERVER)]
    for child in children:
        child.wait_for_line("ready")
    children[1].signal(signal.SIGSTOP)
    stop_all(children, timeout_s=0.5)
    assert [child.exit_code for child in children] == [-signal.SIGKILL, -signal.SIGTERM]


def test_a_killed_child_can_be_started_again(make: Make) -> None:
    """Its output is appended to the same file."""
    child = make(SERVER)
    child.wait_for_line("ready")
    child.kill()
    child.start()
    child.wait_for_line(r"(?s)ready at home.*ready at home")
    assert not child.ended()


def test_a_wait_names_its_condition_and_the_last_answer() -> None:
    """The deadline holds."""
    with pytest.raises(NotInTimeError, match=re.escape("not within 0.1 s: pigs fly; last answer: 0")):
        wait_for(lambda: 0, "pigs fly", timeout_s=0.1, every_s=0.01)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not hold processes to processors")
def test_a_child_is_held_to_its_processors(tmp_path: Path) -> None:
    """The run itself is not."""
    before = os.sched_getaffinity(0)
    core = min(before)
    with Run(tmp_path) as run:
        with held_to(frozenset({core})):
            child = run.child("pinned", [sys.executable, "-c", "import os; print('ready at', os.sched_getaffinity(0))"])
        assert child.wait_for_line(r"ready at (.+)$").group(1) == f"{{{core}}}"
    assert os.sched_getaffinity(0) == before


def test_a_run_whose_terminal_hangs_up_ends_as_interrupted(tmp_path: Path) -> None:
    """What it writes afterwards goes nowhere, and fails nothing."""
    program = """
import os, sys, time
os.open(os.ttyname(0), os.O_RDWR)  # makes it the controlling terminal
from retryapp.stage import Run
try:
    with Run():
        print("running", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        **dict.fromkeys(("stdin", "stdout", "stderr"), end),
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    os.close(end)
    assert b"running" in os.read(terminal, 100)
    os.close(terminal)
    assert process.wait(20) == 130
    assert list(tmp_path.iterdir()) == []

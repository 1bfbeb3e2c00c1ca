"""Child processes of a run."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from retryapp.demo.processes import Child, ChildFailedError, stop_all

READY = r"^ready at (\S+)"
SERVER = "import time; print('ready at home', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVER
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('ready at', child.pid, flush=True); time.sleep(60)"
)

Make = Callable[[str], Child]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make children that run a text of Python; whatever is left is killed."""
    children: list[Child] = []

    def _make(program: str) -> Child:
        child = Child("child", [sys.executable, "-c", program], log=tmp_path / f"{len(children)}.log")
        children.append(child)
        return child

    yield _make
    for child in children:
        child.kill()


def test_a_child_is_ready_when_it_says_so(make: Make) -> None:
    """Waiting returns what the line tells."""
    child = make(SERVER)
    child.start()
    assert child.wait_for(READY, timeout_s=20) == "home"
    child.stop()
    assert (child.pid, child.exit_code) == (None, -15)


def test_a_child_that_ends_too_soon_is_shown_with_its_last_words(make: Make) -> None:
    """The error has the exit code, the log and its end."""
    child = make("import sys; sys.exit('no such broker')")
    child.start()
    with pytest.raises(ChildFailedError, match=r"ended with exit code 1 before it was ready; (?s:.)*no such broker"):
        child.wait_for(READY, timeout_s=20)


def test_a_child_that_is_never_ready_is_named(make: Make) -> None:
    """The wait is bounded."""
    child = make("import time; time.sleep(60)")
    child.start()
    with pytest.raises(ChildFailedError, match=r"was not ready within 0\.2 s"):
        child.wait_for(READY, timeout_s=0.2)


def test_a_kill_takes_what_the_child_started(make: Make) -> None:
    """The whole session ends, so nothing is left behind."""
    child = make(PARENT)
    child.start()
    grandchild = psutil.Process(int(child.wait_for(READY, timeout_s=20)))
    child.kill()
    grandchild.wait(5)
    assert child.exit_code == -9


def test_a_stubborn_child_is_killed_after_its_time(make: Make) -> None:
    """Who ignores TERM is killed; the others are not waited for one by one."""
    children = [make(STUBBORN), make(SERVER)]
    for child in children:
        child.start()
    for child in children:
        child.wait_for(READY, timeout_s=20)
    stop_all(children, timeout_s=0.5)
    assert [child.exit_code for child in children] == [-9, -15]


def test_a_killed_child_can_be_started_again(make: Make) -> None:
    """Its output goes on in the same file."""
    child = make(SERVER)
    child.start()
    child.wait_for(READY, timeout_s=20)
    child.kill()
    child.start()
    assert child.pid is not None
    child.wait_for(r"(?s)ready at home.*ready at (\S+)", timeout_s=20)

"""Several processes from one command: signals, ends and output, with fake workers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retryapp.cli._processes import run_processes
from retryapp.core.errors import EnvironmentFault

RUN = """
import sys
from retryapp.cli._processes import run_processes
sys.exit(run_processes([sys.executable, "-c", {!r}], 3, check=[sys.executable, "-c", {!r}]))
"""
OBEDIENT = """
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
def end(number, frame):
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 3:
        time.sleep(0.02)
    os.write(1, b"tidy %d\\n" % number)  # whole: three write here
    sys.exit(int(number == signal.SIGINT))
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
os.write(1, b"up\\n")
time.sleep(60)
"""
UNTIDY = "import os, signal, time; signal.signal(2, signal.SIG_DFL); os.write(1, b'up\\n'); time.sleep(60)"
LAST_ENDS = """
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"tidy\\n"), sys.exit(0)))
(folder / str(os.getpid())).touch()
while len(started := sorted(folder.iterdir())) < 3:
    time.sleep(0.02)
while started[-1].name != str(os.getpid()):
    time.sleep(0.02)
{end}
"""


def run_three(program: str, check: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN.format(program, check)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_all(number: signal.Signals, tmp_path: Path) -> None:
    """All get it before one has ended, and are waited for; the code is theirs."""
    with run_three(OBEDIENT.format(folder=str(tmp_path))) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["up\n"] * 3
        process.send_signal(number)
        assert process.wait(20) == int(number == signal.SIGINT)
        assert list(process.stdout) == [f"tidy {int(number)}\n"] * 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_processes_that_die_of_the_signal_are_a_clean_end(number: signal.Signals, code: int) -> None:
    """They were stopped before they were up and had nothing to tidy."""
    with run_three(UNTIDY) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["up\n"] * 3
        process.send_signal(number)
        assert process.wait(10) == code


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("sys.exit(0)", 0, "exit code 0"),
        ("sys.exit(4)", 4, "exit code 4"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
    ],
)
def test_the_first_end_stops_the_others_and_is_the_exit_code(tmp_path: Path, end: str, code: int, words: str) -> None:
    """Fewer processes than asked for would go unnoticed."""
    with run_three(LAST_ENDS.format(folder=str(tmp_path), end=end)) as process:
        out, err = process.communicate(timeout=20)
        assert process.returncode == code
    assert err.endswith(f"ended with {words}; the others are stopped\n")
    assert err.count("\n") == 1
    assert out.splitlines() == ["tidy", "tidy"]


@pytest.mark.parametrize(
    ("number", "code"), [(None, 2), (signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["refused", "TERM", "INT"]
)
def test_nothing_is_started_after_a_check_that_refuses_or_is_stopped(number: signal.Signals | None, code: int) -> None:
    """Its exit code is the command's."""
    ending = "sys.exit(2)" if number is None else "time.sleep(60)"
    check = f"import signal, sys, time; signal.signal(2, signal.SIG_DFL); print('checked', flush=True); {ending}"
    with run_three("print('started')", check) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "checked\n"
        if number is not None:
            process.send_signal(number)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == code


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [("os._exit(5)", 5, "exit code 5"), ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL")],
)
def test_a_check_that_ends_without_a_word_is_told(end: str, code: int, words: str) -> None:
    """An import may crash, or take all memory: the command ended, and said nothing."""
    with run_three("print('started')", f"import os, signal; {end}") as process:
        told = f"retryapp: the check of the app ended with {words}\n"
        assert process.communicate(timeout=20) == ("", told)
        assert process.returncode == code


def test_a_process_that_cannot_be_started_is_an_environment_error(tmp_path: Path) -> None:
    """Not a traceback; our own signal handlers are back."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(EnvironmentFault, match="cannot start process 1 of 2"):
        run_processes([str(tmp_path / "none")], 2, check=["true"])
    assert signal.getsignal(signal.SIGTERM) is before

"""Kill the descendants of a process when it has ended, however it ended (SIGKILL included).

1. `guard` marks this process's environment; its descendants inherit the mark.
2. It starts the guardian, a process in a session of its own that reads a pipe whose only writer is this process.
3. When the pipe closes, the guardian kills the marked processes, removes the entrusted folders, and ends. A process
   that ends in order waits for that.

PR_SET_PDEATHSIG does less: it fires when the *thread* that started a process ends, and grandchildren do not inherit it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Final

import psutil

_MARK: Final = "RUN_GUARDED_BY"
_SWEEP_TIMEOUT_S: Final = 30.0
_guardians: dict[int, subprocess.Popen[bytes]] = {}


def guard() -> None:
    """Have all processes that this one starts from now on killed at its end."""
    if os.getpid() in _guardians:
        return
    mark = uuid.uuid4().hex
    guardian = subprocess.Popen(  # noqa: S603 - all words of the command are ours
        [sys.executable, "-m", "retryapp.guardian", mark],
        env={name: value for name, value in os.environ.items() if name != _MARK},  # an outer guardian spares this one
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    _guardians[os.getpid()] = guardian
    os.environ[_MARK] = mark
    atexit.register(_dismiss, guardian)


def entrust(folder: Path) -> None:
    _tell(f"+{folder}")


def release(folder: Path) -> None:
    _tell(f"-{folder}")


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _tell(line: str) -> None:
    guard()
    pipe = _guardians[os.getpid()].stdin
    if pipe is not None:
        pipe.write(f"{line}\n".encode())
        pipe.flush()


def _dismiss(guardian: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        guardian.communicate(timeout=_SWEEP_TIMEOUT_S)


def _watch(mark: str) -> None:
    folders: set[str] = set()
    for line in sys.stdin.read().splitlines():
        (folders.add if line[0] == "+" else folders.discard)(line[1:])
    deadline_s = time.monotonic() + _SWEEP_TIMEOUT_S
    while (marked := [process for process in psutil.process_iter() if _bears(process, mark)]) and (
        time.monotonic() < deadline_s
    ):
        for process in marked:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)  # what they started meanwhile bears the mark too
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _bears(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(_MARK) == mark and is_alive(process)
    return False


if __name__ == "__main__":
    _watch(sys.argv[1])

"""Start workers and commands without loading Faust and retryapp once more: two thirds of a start's CPU.

A process without threads loads both, and forks for each start. The child gets the arguments, the environment, the
folder and the files that a start would give it, so only what was imported before differs. Workers of the README and of
a Procfile are started as their users start them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retryapp.guardian import guard

_NUMBER = struct.Struct("i")
_MESSAGE_BYTES = 100_000
_LOADED = (
    "faust.cli.faust",
    "faust.cli.worker",
    "faust.livecheck",
    "retryapp.cli.main",
    "retryapp.retries",
    *(f"retryapp.cli.{name}" for name in ("causes", "dead", "doctor", "handler", "job", "ledger", "outage", "pending")),
)


class Forked:
    """As much of a `Popen` as somebody else's child can be."""

    def __init__(self, status: int) -> None:
        self.pid = _read(status)
        self.returncode: int | None = None
        self._status, self._reading = status, threading.Lock()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        ended = select.poll()
        ended.register(self._status, select.POLLIN)
        if self.returncode is None and not ended.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        with self._reading:
            if self.returncode is None:
                self.returncode = _read(self._status)
                os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def fork(words: Sequence[str], files: Sequence[int], *, cwd: Path | None, env: Mapping[str, str]) -> Forked:
    """Run `faust` or `retryapp` in a session of its own; `files` are descriptors for stdin, stdout and stderr."""
    status, theirs = os.pipe()
    asked = json.dumps({"words": list(words), "cwd": str(cwd or Path.cwd()), "env": dict(env)})
    socket.send_fds(_server(), [asked.encode()], [*files, theirs])
    os.close(theirs)
    return Forked(status)


def _read(status: int) -> int:
    data = os.read(status, _NUMBER.size)
    assert data, "the process that forks has ended; it says why on stderr"
    number: int = _NUMBER.unpack(data)[0]
    return number


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guard()
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], start_new_session=True)
    theirs.close()
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


# -- in the process that forks ----------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return it in the child, and None in the end."""
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork would lose the others"
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report(statuses)
        if requests not in ready:
            continue
        asked, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
        if not asked:
            return None
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.detach()
            for number, file in enumerate(files[:3]):
                os.dup2(file, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            return dict(json.loads(asked))
        statuses[pid] = files[3]
        os.write(files[3], _NUMBER.pack(pid))
        _close(files[:3])


def _report(statuses: dict[int, int]) -> None:
    """Write down how children have ended."""
    while statuses:
        pid, how = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(statuses[pid], _NUMBER.pack(os.waitstatus_to_exitcode(how)))
        _close([statuses.pop(pid)])


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _run(words: list[str], cwd: str, env: dict[str, str]) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = words
    if words[0] == "retryapp":
        sys.path.insert(0, str(Path(sys.executable).parent))
        sys.exit(importlib.import_module("retryapp.cli.main").main())
    sys.path.insert(0, cwd)
    runpy.run_module(f"{words[0]}.__main__", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        _run(**request)

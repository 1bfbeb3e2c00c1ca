"""Start and stop the processes of a run: broker, workers, services.

`Run` stops them when its block ends: normally, by an error, by Ctrl-C, SIGTERM or SIGHUP. The guardian does after an
end without Python code (SIGKILL, a crash of the interpreter).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeVar

import psutil

from retryapp.broker import Broker
from retryapp.broker.config import NEVER_RESTARTED
from retryapp.core.errors import EnvironmentFault
from retryapp.guardian import entrust, guard, is_alive, release
from retryapp.jvm import Progress

STOP_TIMEOUT_S: Final = 5.0
"""Between TERM and KILL."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN_LINES: Final = 15

T = TypeVar("T")


class NotInTimeError(EnvironmentFault):
    """A condition did not become true before its deadline."""


class ChildFailedError(EnvironmentFault):
    """A process ended or was not ready in time. Operator action: read its log, which the message names."""


def wait_for(condition: Callable[[], T | None], what: str, *, timeout_s: float = 30.0, every_s: float = 0.05) -> T:
    """Call a condition until it returns something true, and return that; raise `NotInTimeError` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise NotInTimeError(f"not within {timeout_s:g} s: {what}; last answer: {value!r}")
        time.sleep(every_s)


class Child:
    """A process in a session of its own (Ctrl-C does not reach it). It can be started again.

    Its output is appended to `log_file`; `env` is added to this process's own.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._command = list(command)
        self._env = dict(env or {})
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ValueError(f"{self.name} was never started")
        return self._process

    @property
    def pid(self) -> int:
        """Process id, also after the end."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    def ended(self) -> bool:
        """Tell whether it is not running."""
        return self._process is None or self._process.poll() is not None

    @property
    def log(self) -> str:
        """All output so far, of all its starts."""
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def start(self) -> Self:
        guard()
        self._family = []
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - all words of the command are ours
                self._command,
                cwd=self._cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def signal(self, number: int) -> None:
        """Send a signal to the process, not to what it started; SIGSTOP pauses it, SIGCONT continues it."""
        self.process.send_signal(number)

    def terminate(self) -> None:
        """Send TERM, and CONT in case it is paused."""
        if not self.ended():
            self._family = self._descendants()
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, with everything that it started, and wait."""
        if self._process is None:
            return
        family = {*self._family, *self._descendants()}
        if not self.ended():
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        wait_for(lambda: not any(map(is_alive, family)), f"all that {self.name} started has ended")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send TERM, wait, kill it; return the exit code."""
        stop_all([self], timeout_s)
        return self.process.returncode

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return the exit code; raise `ChildFailedError` if it still runs."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failure(f"still runs after {timeout_s:g} s") from None

    def wait_for_line(self, pattern: str, *, timeout_s: float = 60.0) -> re.Match[str]:
        """Wait until its output matches; `^` and `$` match at lines. Raise `ChildFailedError` if it ends first."""

        def line() -> re.Match[str] | None:
            ended = self.ended()
            match = re.search(pattern, self.log, re.MULTILINE)
            if match is None and ended:
                raise self.failure(f"ended with exit code {self.exit_code} before it was ready")
            return match

        try:
            return wait_for(line, pattern, timeout_s=timeout_s)
        except NotInTimeError:
            raise self.failure(f"was not ready within {timeout_s:g} s") from None

    def failure(self, problem: str) -> ChildFailedError:
        tail = "\n".join(self.log.splitlines()[-_SHOWN_LINES:])
        return ChildFailedError(f"{self.name} {problem}; its log {self.log_file} ends with:\n{tail}")

    def _descendants(self) -> list[psutil.Process]:
        return [] if self.ended() else psutil.Process(self.pid).children(recursive=True)


def stop_all(children: Sequence[Child], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Send TERM to all, wait, then kill those that still run, and what any of them left."""
    for child in children:
        child.terminate()
    with contextlib.suppress(NotInTimeError):
        wait_for(lambda: all(child.ended() for child in children), "all have ended", timeout_s=timeout_s)
    for child in children:
        child.kill()


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # the terminal is gone: writing to it fails
        with Path(os.devnull).open("w") as sink:
            for descriptor in (1, 2):
                if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                    os.dup2(sink.fileno(), descriptor)
    signal.default_int_handler(number, frame)


class Run:
    """The processes of one run, and its folder: the caller's own is kept, a temporary one is removed.

    Within its block SIGTERM and SIGHUP interrupt as Ctrl-C does.
    """

    def __init__(self, folder: Path | None = None) -> None:
        guard()
        self.folder = folder or Path(tempfile.mkdtemp(prefix="retryapp-run-"))
        self.kept = folder is not None
        """Keep the folder at the end, without the brokers' data."""
        self.children: list[Child] = []
        self._brokers: list[Broker] = []
        self._handlers: dict[int, Any] = {}
        if not self.kept:
            entrust(self.folder)

    def child(self, name: str, command: Sequence[str], **options: Any) -> Child:
        """Start a process; its output goes to `NAME.log` in the folder. For the options see `Child`."""
        child = Child(name, command, log_file=self.folder / f"{name}.log", **options)
        self.children.append(child)
        return child.start()

    def broker(self, cache_dir: Path, *, progress: Progress | None = None, **options: Any) -> Broker:
        """Start a broker for this run alone; its data and log are in the folder. For the options see `Broker`."""
        name = f"broker{len(self._brokers) or ''}"
        data, log = self.folder / name, self.folder / f"{name}.log"
        broker = Broker(cache_dir, data=data, log=log, settings=NEVER_RESTARTED, **options)
        self._brokers.append(broker)
        broker.start(progress=progress)
        return broker

    def close(self) -> None:
        """Stop all processes, the brokers last, and remove the folder."""
        try:
            stop_all(self.children)
        finally:
            for broker in self._brokers:
                broker.stop()
                shutil.rmtree(broker.data, ignore_errors=True)
            if not self.kept:
                shutil.rmtree(self.folder, ignore_errors=True)
            release(self.folder)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)  # nothing breaks off the clean-up; its time is bounded
        try:
            self.close()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

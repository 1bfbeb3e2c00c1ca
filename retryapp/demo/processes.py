"""Child processes of a run: each in a session of its own, so that Ctrl-C reaches only the run, which then ends them.

A child's output goes to a file; what it says there (an address, a reason) is read from the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from retryapp.core.errors import EnvironmentFault
from retryapp.demo.clock import monotonic_s

STOP_TIMEOUT_S = 5.0
"""Between TERM and KILL."""

_POLL_S = 0.05
_SHOWN_LINES = 15


class ChildFailedError(EnvironmentFault):
    """A process of the run ended or was not ready in time. Operator action: read its log, which the message names."""

    def __init__(self, child: str, problem: str, log: Path, tail: str) -> None:
        """Say who, what, and what it wrote last.

        Args:
            child: its name.
            problem: what happened, as the rest of a sentence.
            log: its output.
            tail: the output's last lines.
        """
        self.child = child
        self.problem = problem
        self.log = log
        super().__init__(f"the demo's {child} {problem}; its log {log} ends with:\n{tail}")


class Child:
    """One process, which can be started again."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        """Describe it; nothing is started.

        Args:
            name: for people.
            command: program and arguments.
            log: where its output is appended.
            env: variables on top of this process's own.
        """
        self.name = name
        self.log = log
        self._command = list(command)
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; none when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last run, negative for a signal; none when it runs or never ran."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - all words of the command are ours
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._env,
            )

    def kill(self) -> None:
        """End it with SIGKILL, with all that it started, and wait."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask it to end, wait, then kill it."""
        stop_all([self], timeout_s)

    def terminate(self) -> None:
        """Ask it to end; does not wait."""
        self._signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, and tell whether it has ended."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        return self.pid is None

    def wait_for(self, pattern: str, *, timeout_s: float) -> str:
        """Wait until its output has a line that matches.

        Returns:
            The pattern's first group.

        Raises:
            ChildFailedError: it ended, or wrote no such line in time.
        """
        deadline_s = monotonic_s() + timeout_s
        while True:
            found = re.search(pattern, self._output(), re.MULTILINE)
            if found is not None:
                return found.group(1)
            if self.pid is None:
                raise self.failure(f"ended with exit code {self.exit_code} before it was ready")
            if monotonic_s() > deadline_s:
                raise self.failure(f"was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def failure(self, problem: str) -> ChildFailedError:
        """Return an error about it that shows what it wrote last."""
        tail = "\n".join(self._output().splitlines()[-_SHOWN_LINES:])
        return ChildFailedError(self.name, problem, self.log, tail)

    def _output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def _signal(self, number: int) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended between the two
                os.killpg(self.pid, number)


def stop_all(children: Sequence[Child], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask all to end at once, wait for all, kill who is left."""
    for child in children:
        child.terminate()
    deadline_s = monotonic_s() + timeout_s
    for child in children:
        if not child.wait(max(0.0, deadline_s - monotonic_s())):
            child.kill()

"""Keeps one worker process alive: starts it again when it ends by accident, with waits that grow up to a bound.

1. Start the child in a process group of its own, so that Ctrl-C in a terminal reaches it once: through us.
2. It ends. An end that was asked for (0, a signal to us) and one that a new start would repeat (2: configuration)
   end us with the same code; anything else is a crash, and it is started again after a wait.
3. A child that has run for a while resets the wait.

SIGTERM and SIGINT are passed on to the child, which is then waited for: it is the child that knows its grace time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Final

from retryapp.cli.console import ExitCode
from retryapp.core.durations import format_duration_ms
from retryapp.core.schedule import Schedule, exp

BACK_OFF: Final = exp("1s", cap="30s", jitter=0.2, retries=6)
"""Waits before the starts that follow crashes; the last one repeats."""

STEADY_S: Final = 60.0
"""A child that has run for so long is taken for healthy: the next wait is the first one again."""

_FINAL: Final = frozenset({ExitCode.FINE, ExitCode.USAGE, ExitCode.INTERRUPTED})
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How a child is started again."""

    back_off: Schedule = BACK_OFF
    steady_s: float = STEADY_S


class Supervisor:
    """Runs one command until it ends for good. Use it in the main thread, once."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        say: Callable[[str], None],
        restarts: Restarts | None = None,
        random: Random | None = None,
    ) -> None:
        """Describe it; nothing is started.

        Args:
            command: program and arguments of the child.
            say: told one line at each restart.
            restarts: waits.
            random: for the jitter of the waits, so that workers that fell together do not come back together.
        """
        self._command = list(command)
        self._say = say
        self._restarts = restarts if restarts is not None else Restarts()
        self._random = random if random is not None else Random()  # noqa: S311 - jitter, no secret
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: signal.Signals | None = None
        self._stop = threading.Event()

    def run(self) -> int:
        """Start the child, and again after each crash.

        Returns:
            The exit code of its last run, 128 plus the number for a signal. When it was stopped before it was up, or
            between two starts: 0 after SIGTERM, 130 after SIGINT.
        """
        crashes = 0
        with self._signals():
            while True:
                began_s = time.monotonic()
                code = self._run_child()
                if self._asked is not None:
                    return self._asked_end if code == 128 + self._asked else code
                if code in _FINAL:
                    return code
                crashes = 1 if time.monotonic() - began_s >= self._restarts.steady_s else crashes + 1
                wait_ms = self._wait_ms(crashes)
                self._say(f"the worker ended with {_told(code)}; it is started again in {format_duration_ms(wait_ms)}")
                if self._stop.wait(wait_ms / 1000):
                    return self._asked_end

    @property
    def _asked_end(self) -> int:
        """The end of a run that had no worker to stop, or one that was not up yet and had nothing to tidy."""
        return ExitCode.INTERRUPTED if self._asked is signal.SIGINT else ExitCode.FINE

    def _run_child(self) -> int:
        self._child = subprocess.Popen(  # noqa: S603 - our own command line, again
            self._command, stdin=subprocess.DEVNULL, process_group=0
        )
        if self._asked is not None:  # between the last look and this start
            self._pass_on(self._asked)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _wait_ms(self, crashes: int) -> int:
        schedule = self._restarts.back_off
        return schedule.delay_ms(min(crashes, schedule.retries), self._random.random())

    def _pass_on(self, number: signal.Signals) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            os.kill(child.pid, number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            self._asked = signal.Signals(number)
            self._stop.set()
            self._pass_on(self._asked)

        before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _told(code: int) -> str:
    if code <= 128:
        return f"exit code {code}"
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"

"""Keeps worker processes alive: one or several of one command, started again when they end by accident.

The life of one process:

1. It is started in a process group of its own, so that Ctrl-C in a terminal reaches it once: through us.
2. It ends. An end that was asked for (0, a signal to us) and one that a new start would repeat (2: configuration) are
   final; anything else is a crash, and it is started again after a wait that grows up to a bound, if that is wanted.
3. A process that has run for a while resets its wait.

The life of several: each waits and starts again by itself, so one that falls again and again holds up none. Where
nothing is started again, the first end stops all: half the processes that were asked for, in silence, is worse than an
end that a service manager sees.

SIGTERM and SIGINT are passed on to all of them, which are then waited for: they know their grace time.
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
from queue import SimpleQueue
from random import Random
from types import FrameType
from typing import IO, Final

from retryapp.cli.console import ExitCode
from retryapp.core.durations import format_duration_ms
from retryapp.core.schedule import Schedule, exp

BACK_OFF: Final = exp("1s", cap="30s", jitter=0.2, retries=6)
"""Waits before the starts that follow crashes; the last one repeats."""

STEADY_S: Final = 60.0
"""A process that has run for so long is taken for healthy: the next wait is the first one again."""

LINE_BYTES: Final = 64 * 1024
"""A longer line of output is shown in pieces of this size: memory stays bounded."""

_FINAL: Final = frozenset({ExitCode.FINE, ExitCode.USAGE, ExitCode.INTERRUPTED})
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_WORDS_S: Final = 1.0
"""How long output may still come after a process has ended: something that it started may hold the pipe for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How a process is started again."""

    back_off: Schedule = BACK_OFF
    steady_s: float = STEADY_S


@dataclass(frozen=True, slots=True)
class _End:
    """The process of this index has ended for good."""

    index: int
    code: int


class Relay:
    """Writes the output of several processes line by line, each with its process's name before it."""

    def __init__(self, out: IO[bytes], err: IO[bytes]) -> None:
        """Args: out, err: where lines of stdout and of stderr go."""
        self._out = out
        self._err = err
        self._lock = threading.Lock()

    def attach(self, process: subprocess.Popen[bytes], name: str) -> tuple[threading.Thread, ...]:
        """Pass on what a process says until it has closed both pipes.

        Returns:
            The threads that do so.
        """
        prefix = f"{name} | ".encode()
        pairs = ((process.stdout, self._out), (process.stderr, self._err))
        threads = tuple(
            threading.Thread(target=self._pass_on, args=(source, sink, prefix), name=f"relay-{name}", daemon=True)
            for source, sink in pairs
            if source is not None
        )
        for thread in threads:
            thread.start()
        return threads

    def _pass_on(self, source: IO[bytes], sink: IO[bytes], prefix: bytes) -> None:
        wanted = True
        with source:
            while line := source.readline(LINE_BYTES):
                if not wanted:
                    continue  # read on: a process whose pipe is full stands still
                try:
                    with self._lock:
                        sink.write(prefix + line.rstrip(b"\r\n") + b"\n")
                        sink.flush()
                except (OSError, ValueError):  # nobody listens any more
                    wanted = False


class _Keeper:
    """One process, in a thread of its own: started, waited for, started again."""

    def __init__(self, index: int, name: str, supervisor: Supervisor) -> None:
        self._index = index
        self._name = name
        self._of = supervisor
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: signal.Signals | None = None
        self._stop = threading.Event()

    def run(self) -> None:
        """Run to the end, and tell it."""
        code: int = ExitCode.BUG
        try:
            code = self._keep()
        finally:
            self._of.events.put(_End(self._index, code))

    def stop(self, number: signal.Signals) -> None:
        """Pass a signal on and start nothing more."""
        with self._lock:
            self._asked = number
            self._stop.set()
            if self._child is not None:
                self._child.send_signal(number)  # looks first whether it still runs

    def _keep(self) -> int:
        crashes = 0
        restarts = self._of.restarts
        while True:
            began_s = time.monotonic()
            code = self._run_child()
            if self._asked is not None:
                return self._asked_end if code == 128 + self._asked else code
            if restarts is None or code in _FINAL:
                return code
            crashes = 1 if time.monotonic() - began_s >= restarts.steady_s else crashes + 1
            wait_ms = self._of.wait_ms(crashes)
            again = f"it is started again in {format_duration_ms(wait_ms)}"
            self._of.say(f"{self._name} ended with {_told(code)}; {again}")
            if self._stop.wait(wait_ms / 1000):
                return self._asked_end

    @property
    def _asked_end(self) -> int:
        """The end of a run that had no process to stop, or one that was not up yet and had nothing to tidy."""
        return ExitCode.INTERRUPTED if self._asked is signal.SIGINT else ExitCode.FINE

    def _run_child(self) -> int:
        relay = self._of.relay
        pipe = None if relay is None else subprocess.PIPE
        with self._lock:
            if self._asked is not None:  # between the last look and this start
                return self._asked_end
            try:
                child = self._child = subprocess.Popen(  # noqa: S603 - our own command line, again
                    self._of.command,
                    stdin=subprocess.DEVNULL,
                    stdout=pipe,
                    stderr=pipe,
                    env=None if relay is None else {"PYTHONUNBUFFERED": "1", **os.environ},
                    process_group=0,
                )
            except OSError as error:  # no memory, too many processes
                self._of.say(f"{self._name} cannot be started: {error}")
                return ExitCode.ENVIRONMENT
        said = () if relay is None else relay.attach(child, self._name)
        code = child.wait()
        deadline_s = time.monotonic() + _LAST_WORDS_S
        for thread in said:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return code if code >= 0 else 128 - code


class Supervisor:
    """Runs one command, once or several times at once, until it ends for good. Use it in the main thread, once."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        say: Callable[[str], None],
        processes: int = 1,
        restarts: Restarts | None,
        relay: Relay | None = None,
        random: Random | None = None,
    ) -> None:
        """Describe it; nothing is started.

        Args:
            command: program and arguments of each process.
            say: told one line at each start that follows a crash, and where one of several ends for good.
            processes: how many.
            restarts: waits before the starts that follow crashes; None: nothing is started again.
            relay: shows what they say; None: they write to our own stdout and stderr.
            random: for the jitter of the waits, so that processes that fell together do not come back together.
        """
        self.command = list(command)
        self.say = say
        self.restarts = restarts
        self.relay = relay
        self.events: SimpleQueue[_End | signal.Signals] = SimpleQueue()
        """What the main thread acts on. A signal handler may put into this kind of queue at any moment."""
        self._random = random if random is not None else Random()  # noqa: S311 - jitter, no secret
        names = ["the worker"] if processes == 1 else [f"process-{number}" for number in range(1, processes + 1)]
        self._keepers = [_Keeper(index, name, self) for index, name in enumerate(names)]
        self._names = names

    def run(self) -> int:
        """Start all, keep them, and wait for their end.

        Returns:
            The exit code of the first that ended with another than 0, else 0; of one that a signal killed 128 plus its
            number. When it was stopped before it was up, or between two starts: 0 after SIGTERM, 130 after SIGINT.
        """
        codes: list[int] = []
        stopping = False
        with self._signals():
            for keeper in self._keepers:
                threading.Thread(target=keeper.run, name="keeper", daemon=True).start()
            while len(codes) < len(self._keepers):
                event = self.events.get()
                if isinstance(event, signal.Signals):
                    stopping = True
                    self._stop_all(event)
                    continue
                codes.append(event.code)
                left = len(self._keepers) - len(codes)
                if not stopping and left:
                    stopping = self._one_less(event, left)
        return next((code for code in codes if code != ExitCode.FINE), ExitCode.FINE)

    def wait_ms(self, crashes: int) -> int:
        """Return the wait before the start that follows so many crashes in a row."""
        schedule = (self.restarts or Restarts()).back_off
        return schedule.delay_ms(min(crashes, schedule.retries), self._random.random())

    def _one_less(self, end: _End, left: int) -> bool:
        """Say that one of several has ended for good; stop the others where nothing is started again.

        Returns:
            Whether the others were told to stop.
        """
        told = f"{self._names[end.index]} ended with {_told(end.code)}"
        if self.restarts is not None:
            self.say(f"{told} and is not started again; {left} of {len(self._names)} run on")
            return False
        self.say(f"{told}; the others are stopped")
        self._stop_all(signal.SIGTERM)
        return True

    def _stop_all(self, number: signal.Signals) -> None:
        for keeper in self._keepers:
            keeper.stop(number)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            self.events.put(signal.Signals(number))

        before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop_with(supervisor: int, *, every_s: float = 1.0) -> threading.Thread:
    """Stop this process as SIGTERM does once the process that started it is gone.

    A supervisor that was killed can pass nothing on: neither a stop nor the output, without which the next line that a
    handler prints would be an error of that handler.

    Args:
        supervisor: process id of the one that started this process.
        every_s: how often to look.

    Returns:
        The thread that looks.
    """

    def look() -> None:
        while os.getppid() == supervisor:
            time.sleep(every_s)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=look, name="supervisor-watch", daemon=True)
    thread.start()
    return thread


def _told(code: int) -> str:
    if code <= 128:
        return f"exit code {code}"
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"

"""A worker process under measurement: started, watched from outside, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import held_to
from benchmarks.spec import WorkerSpec
from retryapp.core.errors import EnvironmentFault

ROOT = Path(__file__).resolve().parent.parent
FAUST_SIDES = ("ours", "bare_faust", "faust_table")
STOP_S = 20.0
_SAMPLE_S = 0.1
_SHOWN_LINES = 15


class WorkerEndedError(EnvironmentFault):
    """A worker under measurement ended by itself. Operator action: read its last lines, which the message has."""

    def __init__(self, side: str, code: int, tail: str) -> None:
        """Args: side: which program. code: its exit code. tail: what it wrote last."""
        self.side = side
        self.code = code
        super().__init__(f"the worker of {side} ended with exit code {code}; it wrote last:\n{tail}")


@dataclass(frozen=True, slots=True)
class Used:
    """What a worker and its broker have used up to a moment."""

    at_ns: int
    worker_cpu_s: float
    broker_cpu_s: float


class WorkerProcess:
    """One worker. As a context manager it is stopped at the end."""

    def __init__(
        self,
        side: str,
        spec: WorkerSpec,
        *,
        log: Path,
        level: str,
        cores: frozenset[int] | None,
        broker_pid: int,
        interpreter: tuple[str, ...] = (),
    ) -> None:
        """Start it.

        Args:
            side: module of `benchmarks.peers`.
            spec: what it is told.
            log: where its output goes.
            level: log level of Faust's workers.
            cores: processors it is held to.
            broker_pid: whose CPU time is read beside.
            interpreter: arguments to Python before the program, for a profiler.
        """
        self.side = side
        self.log = log
        self.started_ns = time.time_ns()
        program = ["-m", f"benchmarks.peers.{side}"]
        if side in FAUST_SIDES:
            program = ["-m", "faust", "-A", program[1], "worker", "-l", level, "--without-web"]
        with held_to(cores), log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - all words of the command are ours
                [sys.executable, *interpreter, *program],
                cwd=ROOT,
                env={**os.environ, **spec.environment(), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watched = psutil.Process(self._process.pid)
        self._broker = psutil.Process(broker_pid)
        self.peak_rss = 0
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name=f"rss-{side}", daemon=True)
        self._sampler.start()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raise when it has ended.

        Raises:
            WorkerEndedError: it has.
        """
        code = self._process.poll()
        if code is not None:
            tail = self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            raise WorkerEndedError(self.side, code, "\n".join(tail))

    def used(self) -> Used:
        """Return what worker and broker have used so far."""
        mine, brokers = self._watched.cpu_times(), self._broker.cpu_times()
        return Used(time.time_ns(), mine.user + mine.system, brokers.user + brokers.system)

    @property
    def rss(self) -> int:
        """Resident memory now, bytes."""
        return int(self._watched.memory_info().rss)

    @property
    def text(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """Ask it to end, then kill it."""
        self._stopping.set()
        self._sampler.join()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _sample(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            with contextlib.suppress(psutil.Error):
                self.peak_rss = max(self.peak_rss, self.rss)

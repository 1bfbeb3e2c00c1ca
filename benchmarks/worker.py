"""A worker process under measurement: started, watched from outside, stopped."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.spec import WorkerSpec
from retryapp.stage import Child, Run

ROOT = Path(__file__).resolve().parent.parent
FAUST_SIDES = ("ours", "bare_faust", "faust_table")
STOP_S = 20.0
_SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Used:
    """What a worker and its broker have used up to a moment."""

    at_ns: int
    worker_cpu_s: float
    broker_cpu_s: float


class WorkerProcess:
    """One worker. As a context manager it is stopped at the end.

    Args:
        run: whose process it is.
        name: of its log.
        side: module of `benchmarks.peers`.
        spec: what the program reads.
        level: log level of Faust's workers.
        cores: processors it is held to.
        broker_pid: whose CPU time is read too.
        interpreter: arguments to Python before the program, for a profiler.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        side: str,
        spec: WorkerSpec,
        *,
        level: str,
        cores: frozenset[int] | None,
        broker_pid: int,
        interpreter: tuple[str, ...] = (),
    ) -> None:
        self.side = side
        self.started_ns = time.time_ns()
        program = ["-m", f"benchmarks.peers.{side}"]
        if side in FAUST_SIDES:
            program = ["-m", "faust", "-A", program[1], "worker", "-l", level, "--without-web"]
        self._child: Child = run.child(
            name, [sys.executable, *interpreter, *program], cwd=ROOT, env=spec.environment(), cores=cores
        )
        self._watched = psutil.Process(self._child.pid)
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
            ChildFailedError: it has.
        """
        if self._child.ended():
            raise self._child.failure(f"ended with exit code {self._child.exit_code}")

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
        return self._child.log

    def stop(self) -> None:
        """Stop it, with SIGKILL if SIGTERM is not enough."""
        self._stopping.set()
        self._sampler.join()
        self._child.stop(STOP_S)

    def _sample(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            with contextlib.suppress(psutil.Error):
                self.peak_rss = max(self.peak_rss, self.rss)

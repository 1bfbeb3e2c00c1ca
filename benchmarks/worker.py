"""A worker process under measurement: started, watched from outside, stopped."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from benchmarks.machine import held_to
from benchmarks.spec import WorkerSpec
from retryapp.stage import Child, Run

ROOT = Path(__file__).resolve().parent.parent
FAUST_SIDES = ("ours", "bare_faust", "faust_table")
STOP_S = 20.0
_SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Used:
    """Wall time, and processor time of a worker and its broker, seconds."""

    wall_s: float
    worker_s: float
    broker_s: float

    def __sub__(self, before: Used) -> Used:
        return Used(self.wall_s - before.wall_s, self.worker_s - before.worker_s, self.broker_s - before.broker_s)


class WorkerProcess(Child):
    """One worker of a side (a module of `benchmarks.peers`). As a context manager it is stopped at the end.

    `name` is that of its log, `level` the log level of Faust's workers; without `web_port` there are no pages.
    """

    def __init__(
        self, run: Run, name: str, side: str, spec: WorkerSpec, *, level: str, cores: frozenset[int] | None,
        broker_pid: int, web_port: int | None = None,
    ) -> None:  # fmt: skip
        module = f"benchmarks.peers.{side}"
        program = ["faust", "-A", module, "worker", "-l", level] if side in FAUST_SIDES else [module]
        if side in FAUST_SIDES and web_port is None:
            program.append("--without-web")
        super().__init__(
            side,
            [sys.executable, "-m", *program],
            log_file=run.folder / f"{name}.log",
            cwd=ROOT,
            env=spec.environment() | ({} if web_port is None else _web(web_port)),
        )
        run.children.append(self)
        self.started_s = time.time_ns() / 1e9
        with held_to(cores):
            self.start()
        self.peak_rss = 0
        self._watched, self._broker = psutil.Process(self.pid), psutil.Process(broker_pid)
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name=f"rss-{side}", daemon=True)
        self._sampler.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._sampler.join()
        self.stop(STOP_S)

    def used(self) -> Used:
        worker, broker = self._watched.cpu_times(), self._broker.cpu_times()
        return Used(time.time_ns() / 1e9, worker.user + worker.system, broker.user + broker.system)

    @property
    def rss(self) -> int:
        """Resident memory now, bytes."""
        return int(self._watched.memory_info().rss)

    def _sample(self) -> None:
        while not self._stopping.wait(_SAMPLE_S):
            with contextlib.suppress(psutil.Error):
                self.peak_rss = max(self.peak_rss, self.rss)


def _web(port: int) -> dict[str, str]:
    """Return the settings of pages that show everything to whoever asks from this machine."""
    return {"RETRYAPP_WEB_PORT": str(port), "RETRYAPP_WEB_OPERATORS": "local:admin"}

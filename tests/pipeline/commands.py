"""Commands of the pipeline as processes of their own, to be stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from history import Group
from quick import QUICK_JVM

from retryapp.pipeline.session import java_flags

PATIENCE_S = 300.0
STOP_S = 90.0


class Command:
    """A command in a process group of its own, in an empty folder."""

    def __init__(
        self, folder: Path, name: str, *words: str, lake: Path | str, group: Group | None = None, **conf: str
    ) -> None:
        self.here, self.temporary = folder / "here", folder / "tmp"
        for each in (self.here, self.temporary):
            each.mkdir(parents=True, exist_ok=True)
        stem = f"{name}-{time.monotonic_ns()}"
        self.log, self.out = folder / f"{stem}.err", folder / f"{stem}.out"
        settings = {"spark.driver.extraJavaOptions": java_flags(*QUICK_JVM), **conf}
        line = [sys.executable, "-m", "retryapp.cli.main", "pipeline", name, "--json", "--memory", "512m"]
        line += ["--lake", str(lake), *words]
        line += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        if group is not None:
            line += ["--broker", group.connection.bootstrap, "--group", group.topology.group]
        variables = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONFAULTHANDLER": "1"}
        with self.log.open("wb") as errors, self.out.open("wb") as output:
            self.process = subprocess.Popen(
                line, start_new_session=True, cwd=self.here, stdout=output, stderr=errors, env=variables
            )

    def __enter__(self) -> Self:
        """Leave nothing of it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left."""
        self.kill()

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so, while it runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            assert time.monotonic() < deadline_s, self.log.read_text()[-3_000:]
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill -9 the driver, its JVM and its Python workers: the JVM outlives a killed Python otherwise."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self, number: int) -> int:
        """Signal all its processes; return its exit code once none of them is left."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, number)
        code = self.process.wait(STOP_S)
        assert psutil.wait_procs(started, timeout=STOP_S)[1] == [], "a process outlives the command"
        return code

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: (exit code, JSON)."""
        code = self.process.wait(PATIENCE_S)
        answer = self.out.read_text().splitlines()
        assert answer, self.log.read_text()[-3_000:]
        return code, json.loads(answer[-1])

    def check_clean(self) -> None:
        """Check that it shows nothing of its inside, and leaves nothing behind."""
        text = self.log.read_text() + self.out.read_text()
        traces = [word for word in ("Traceback", "\tat ", "Exception", "ERROR") if word in text]
        assert traces == [], text[-3_000:]
        assert list(self.here.iterdir()) == []
        assert list(self.temporary.glob("retryapp-spark-*")) == []


def batches(lake: Path, kind: str) -> int:
    """Return how many batches are begun (``offsets``) or done (``commits``), in all checkpoints of the archive."""
    return len([path for path in lake.glob(f"checkpoints/archive/v1/*/{kind}/*") if path.name.isdigit()])


def is_in_mid_batch(lake: Path, *, after: int = 1) -> bool:
    """Tell whether so many batches are done and another one has begun."""
    done = batches(lake, "commits")
    return done >= after and batches(lake, "offsets") > done

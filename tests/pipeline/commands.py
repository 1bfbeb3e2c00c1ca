"""Commands of the pipeline, and a cluster, as processes of their own, to be stopped and killed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import psutil
import pyspark
from history import Group
from quick import QUICK_JVM

from retryapp.broker.probe import free_ports
from retryapp.pipeline.session import java_flags
from retryapp.stage import Child, wait_for

PATIENCE_S = 300.0
STOP_S = 90.0
HOST: Final = "127.0.0.1"
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
QUICK: Final = " ".join(QUICK_JVM)


class Command(Child):
    """A command in a process group of its own, in an empty folder."""

    def __init__(
        self, folder: Path, name: str, *words: str, lake: Path | str, group: Group | None = None, **conf: str
    ) -> None:
        self.here, self.temporary = folder / "here", folder / "tmp"
        for each in (self.here, self.temporary):
            each.mkdir(parents=True, exist_ok=True)
        settings = {"spark.driver.extraJavaOptions": java_flags(*QUICK_JVM), **conf}
        line = [sys.executable, "-m", "retryapp.cli.main", "pipeline", name, "--json", "--memory", "512m"]
        line += ["--lake", str(lake), *words]
        line += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        if group is not None:
            line += group.where
        variables = {"TMPDIR": str(self.temporary), "PYTHONFAULTHANDLER": "1"}
        log_file = folder / f"{name}-{time.monotonic_ns()}.log"
        super().__init__(name, line, log_file=log_file, cwd=self.here, env=variables)
        self.start()

    def __enter__(self) -> Self:
        """Have it run, until it ends or the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing of it: the JVM outlives a killed Python otherwise."""
        self.kill()

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so, while it runs."""

        def so() -> object:
            assert not self.ended(), self.log[-3_000:]
            return condition()

        wait_for(so, f"{self.name}: {condition}", timeout_s=PATIENCE_S, every_s=0.01)

    def signal_all(self, number: int) -> int:
        """Signal all its processes; return its exit code once none of them is left."""
        started = psutil.Process(self.pid).children(recursive=True)
        os.killpg(self.pid, number)
        code = self.wait(STOP_S)
        assert psutil.wait_procs(started, timeout=STOP_S)[1] == [], "a process outlives the command"
        return code

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: (exit code, JSON)."""
        code = self.wait(PATIENCE_S)
        answers = [line for line in self.log.splitlines() if line.startswith("{")]
        assert answers, self.log[-3_000:]
        return code, json.loads(answers[-1])

    def check_clean(self) -> None:
        """Check that it shows nothing of its inside, and leaves nothing behind."""
        traces = [word for word in ("Traceback", "\tat ", "Exception", "ERROR", "log level") if word in self.log]
        assert traces == [], self.log[-3_000:]
        assert list(self.here.iterdir()) == []
        assert list(self.temporary.glob("retryapp-spark-*")) == []


def batches(lake: Path) -> int:
    """Return how many batches the archive has committed."""
    return sum('\\"retryapp\\"' in path.read_text() for path in lake.glob("records/_delta_log/*.json"))


class Cluster:
    """A standalone master and two workers, from the installed PySpark: the wheel has no start scripts."""

    def __init__(self, folder: Path, java: Path, *, apart: Path | None = None) -> None:
        """Start it; ``apart`` is a folder of which each worker has one of its own, as on other machines."""
        self.folder, self.java, self.apart = folder, java, apart
        self.daemons: list[Child] = []
        port, *web = free_ports(4)
        self.url = f"spark://{HOST}:{port}"
        self.start("master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(web[0]))
        for number in (1, 2):
            work = ["--work-dir", str(folder / f"work-{number}"), "--webui-port", str(web[number])]
            self.start("worker.Worker", "--host", HOST, "--cores", "1", "--memory", "700m", *work, self.url)

    def __enter__(self) -> Self:
        """Have it run until the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all of it."""
        for daemon in self.daemons:
            daemon.kill()

    @property
    def settings(self) -> dict[str, str]:
        """What a driver sets, so that it and its executors stay small."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.extraJavaOptions": java_flags(*QUICK_JVM),
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": f"{QUICK} -Xss4m",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "1",
        }

    def start(self, name: str, *arguments: str) -> None:
        home = Path(pyspark.__path__[0])
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        settings = {
            "JAVA_HOME": str(self.java), "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }  # fmt: skip
        if self.apart is not None and "Worker" in name:
            command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(self.apart), *command]
        number = len(self.daemons)
        daemon = Child(name, command, log_file=self.folder / f"daemon-{number}.log", env=settings)
        self.daemons.append(daemon.start())

    def executors(self) -> list[psutil.Process]:
        found = []
        for daemon in self.daemons[1:]:
            for child in psutil.Process(daemon.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    found += [child] if EXECUTOR in child.cmdline() else []
        return found

"""A real cluster: a standalone master and two workers, as processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil
from quick import QUICK_JVM

from retryapp.broker.probe import free_ports
from retryapp.pipeline.session import java_flags
from retryapp.stage import Child

HOST: Final = "127.0.0.1"
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
QUICK: Final = " ".join(QUICK_JVM)


class Cluster:
    """A standalone master and two workers, from the installed PySpark: the wheel has no start scripts."""

    def __init__(self, folder: Path, *, apart: Path | None = None) -> None:
        """Start it; ``apart`` is a folder of which each worker has one of its own, as on other machines."""
        self.folder = folder
        self.apart = apart
        self.daemons: list[Child] = []
        port, *self.web = free_ports(4)
        self.url = f"spark://{HOST}:{port}"
        self.start("master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(self.web[0]))
        for number in (1, 2):
            work = ["--work-dir", str(folder / f"work-{number}"), "--webui-port", str(self.web[number])]
            self.start("worker.Worker", "--host", HOST, "--cores", "1", "--memory", "700m", *work, self.url)

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
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        settings = {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }
        if self.apart is not None and "Worker" in name:
            command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(self.apart), *command]
        number = len(self.daemons)
        daemon = Child(name, command, log_file=self.folder / f"daemon-{number}.log", env=settings)
        self.daemons.append(daemon.start())

    def executors(self) -> list[psutil.Process]:
        found = []
        for daemon in self.daemons[1:]:
            for child in psutil.Process(daemon.pid).children(recursive=True):
                try:
                    if EXECUTOR in child.cmdline():
                        found.append(child)
                except psutil.NoSuchProcess:
                    continue
        return found

    def stop(self) -> None:
        for daemon in self.daemons:
            daemon.kill()

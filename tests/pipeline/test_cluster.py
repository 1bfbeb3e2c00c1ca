"""A real cluster: a master, two workers, the archive job on both, and an executor killed in mid-batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from delta import rows_of
from history import Group
from samples import dead

from retryapp.broker.probe import free_ports
from retryapp.core.headers import encode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_offsets
from retryapp.pipeline.session import java_flags

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
RECORDS = 2_000
PATIENCE_S = 240.0
HOST = "127.0.0.1"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
MOST_BYTES = 4 * 2**30


class Cluster:
    """A standalone master and two workers, from the installed PySpark: the wheel has no start scripts."""

    def __init__(self, folder: Path, sharing: str) -> None:
        """Args: folder: for logs and work. sharing: Java's options for its archive of classes."""
        self.folder = folder
        self.sharing = sharing
        self.processes: list[subprocess.Popen[bytes]] = []
        port, *self.web = free_ports(4)
        self.url = f"spark://{HOST}:{port}"
        self.start("master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(self.web[0]))
        for number in (1, 2):
            work = ["--work-dir", str(folder / f"work-{number}"), "--webui-port", str(self.web[number])]
            self.start("worker.Worker", "--host", HOST, "--cores", "1", "--memory", "700m", *work, self.url)

    def start(self, name: str, *arguments: str) -> None:
        """Start one daemon."""
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        settings = {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {self.sharing}",
        }
        with (self.folder / f"daemon-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)

    def executors(self) -> list[psutil.Process]:
        """Return the executors of both workers."""
        found = []
        for process in self.processes[1:]:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    if EXECUTOR in child.cmdline():
                        found.append(child)
                except psutil.NoSuchProcess:
                    continue
        return found

    def memory_bytes(self) -> int:
        """Return what all its processes hold in memory."""
        held = 0
        for process in self.processes:
            root = psutil.Process(process.pid)
            for each in (root, *root.children(recursive=True)):
                try:
                    held += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        return held

    def stop(self) -> None:
        """Kill everything that was started."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path, cache_dir: Path) -> Iterator[Cluster]:
    """A running cluster."""
    from retryapp.pipeline.classes import sharing_flags
    from retryapp.pipeline.java import java_home

    pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
    os.environ.setdefault("JAVA_HOME", str(java_home(cache_dir)))
    made = Cluster(tmp_path, sharing_flags(cache_dir))
    yield made
    made.stop()


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something is so, while the driver runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, log.read_text()[-3_000:]
        assert time.monotonic() < deadline_s, log.read_text()[-3_000:]
        time.sleep(0.05)


def test_an_executor_killed_in_mid_batch(
    cluster: Cluster, connection: KafkaConnection, topology: HandlerTopology, tmp_path: Path
) -> None:
    """Its tasks run again elsewhere: each record is there once, and Python functions ran on both workers."""
    group = Group(connection, topology)
    group.make(partitions=4)
    for number in range(RECORDS):
        group.send(topology.dlq, number % 4, b"k%d" % number, b"v" * 100, encode_metadata(dead(number)))
    group.flush()
    lake, log = tmp_path / "lake", tmp_path / "driver.log"
    notes = lake / "checkpoints" / "archive" / "v1"
    settings = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.extraJavaOptions": java_flags(*QUICK.split()),
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"{QUICK} -Xss4m {cluster.sharing}",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    command = [sys.executable, "-m", "retryapp.cli.main", "pipeline", "archive", "--json", "--memory", "512m"]
    command += ["--broker", connection.bootstrap, "--group", topology.group, "--lake", str(lake)]
    command += ["--master", cluster.url, "--rows-per-batch", "1000"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    cluster.processes.append(process)
    wait_until(lambda: len(cluster.executors()) == 2, process, log)
    wait_until(lambda: done(notes, "commits") >= 1 and done(notes, "offsets") > done(notes, "commits"), process, log)
    held = cluster.memory_bytes()
    cluster.executors()[0].kill()
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-3_000:]
    found = Counter(rows_of(lake / "records", ("topic", "partition", "offset")))
    read = read_offsets(connection, topology.dlq)
    assert found == Counter((topology.dlq, partition, offset) for partition, offset, _ in read)
    assert found.total() == RECORDS
    assert {row[0] for row in rows_of(lake / "records", ("unreadable",))} == {None}
    assert held <= MOST_BYTES, f"{held / 2**30:.1f} GiB"


def done(notes: Path, kind: str) -> int:
    """Return how many batches are begun (``offsets``) or done (``commits``)."""
    return len([path for path in notes.glob(f"*/{kind}/*") if path.name.isdigit()])

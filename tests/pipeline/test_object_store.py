"""A lake on an object store: Hadoop's S3A against a server of S3's protocol, beside real Kafka.

Not in `make test`: S3A's jars are 690 MB. `pip install 'moto[s3,server]'`, then pytest with `-m soak` and this file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from delta import rows_of
from history import Group
from quick import QUICK_JVM
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.kafka import KafkaConnection, read_offsets
from retryapp.pipeline.hold import LEASE_MS
from retryapp.pipeline.session import java_flags

pytest.importorskip("pyspark", reason="the pipeline's tests need PySpark: pip install 'retryapp[spark]'")
server = pytest.importorskip("moto.server", reason="needs a server of S3's protocol: pip install 'moto[s3,server]'")

pytestmark = [pytest.mark.extended, pytest.mark.soak, pytest.mark.timeout(1_800)]
RECORDS = 1_000
BUCKET = "lake"
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
PATIENCE_S = 600.0
ADDRESS = b"ada.lovelace@example.org"


@dataclass
class Store:
    """A bucket, seen without Hadoop."""

    endpoint: str

    @property
    def files(self) -> Any:
        """Arrow's own client of S3."""
        from pyarrow import fs

        address = self.endpoint.removeprefix("http://")
        given = {"access_key": "a", "secret_key": "b", "region": "us-east-1", "allow_bucket_creation": True}
        return fs.S3FileSystem(endpoint_override=address, scheme="http", **given)

    def copy(self, folder: Path) -> Path:
        """Copy all of it to a folder."""
        from pyarrow import fs

        fs.copy_files(BUCKET, str(folder), source_filesystem=self.files)
        return folder

    def names(self, *words: str) -> list[str]:
        """Return the paths that have all of these words."""
        from pyarrow import fs

        found = self.files.get_file_info(fs.FileSelector(BUCKET, recursive=True))
        return [each.path for each in found if all(word in each.path for word in words)]

    @property
    def settings(self) -> dict[str, str]:
        """What a user sets for such a store."""
        return {
            "spark.jars.packages": HADOOP_AWS,
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "a",
            "spark.hadoop.fs.s3a.secret.key": "b",
        }


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty bucket."""
    made = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    found = Store(f"http://{host}:{port}")
    urlopen(Request(f"{found.endpoint}/moto-api/reset", method="POST")).close()  # noqa: S310 - its buckets are the process's
    found.files.create_dir(BUCKET)
    yield found
    made.stop()


@pytest.fixture
def group(connection: KafkaConnection) -> Group:
    """Topics with many dead letters, and their main topic."""
    made = Group.with_main(connection, partitions=4)
    for number in range(RECORDS):
        made.send(
            made.topology.dlq, number % 4, ADDRESS if number == 7 else b"k", b"v" * 100, encode_metadata(dead(number))
        )
    made.flush()
    return made


class Command:
    """A command of the pipeline on the store."""

    def __init__(self, store: Store, folder: Path, name: str, *words: str) -> None:
        """Start it."""
        folder.mkdir(exist_ok=True)
        self.out, self.log = folder / f"{time.monotonic_ns()}.out", folder / f"{time.monotonic_ns()}.err"
        settings = {"spark.driver.extraJavaOptions": java_flags(*QUICK_JVM), **store.settings}
        line = [sys.executable, "-m", "retryapp.cli.main", "pipeline", name, "--json", "--memory", "1g", *words]
        line += ["--lake", f"s3a://{BUCKET}/retries", "--master", "local[2]"]
        line += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        with self.out.open("wb") as output, self.log.open("wb") as errors:
            self.process = subprocess.Popen(line, stdout=output, stderr=errors, start_new_session=True, cwd=folder)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, while it runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill -9 the driver, its JVM and its Python workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end: (exit code, JSON)."""
        code = self.process.wait(PATIENCE_S)
        said = self.out.read_text().splitlines()
        assert said, self.log.read_text()[-3_000:]
        return code, json.loads(said[-1])


def places(lake: Path) -> Counter[tuple[Any, ...]]:
    """Count each place in the archive, without Spark and Hadoop."""
    return Counter(rows_of(lake / "retries" / "records", ("topic", "partition", "offset")))


def test_killed_taken_over_analysed_and_erased(store: Store, group: Group, tmp_path: Path) -> None:
    """Killed in mid-batch, its lease is in the way for a minute; then nothing is lost, and nothing is there twice."""
    where = ("--broker", group.connection.bootstrap, "--group", group.topology.group)
    killed = Command(store, tmp_path / "run", "archive", *where, "--rows-per-batch", "100")
    killed.wait_until(lambda: len(store.names("/commits/")) >= 3)
    killed.kill()
    at_s = time.monotonic()
    before = places(store.copy(tmp_path / "before"))
    assert 0 < before.total() < RECORDS, "it was not killed in the middle"

    code, told = Command(store, tmp_path / "run", "archive", *where).end()
    if time.monotonic() - at_s < LEASE_MS / 1000 - 10:
        assert (code, told["error"]["type"]) == (3, "HeldError")
    while told.get("error", {}).get("type") == "HeldError":
        assert time.monotonic() < at_s + PATIENCE_S
        code, told = Command(store, tmp_path / "run", "archive", *where).end()
    assert code == 0, told
    topic = group.topology.dlq
    on_topic = Counter((topic, place, offset) for place, offset, _ in read_offsets(group.connection, topic))
    assert places(store.copy(tmp_path / "after")) == on_topic

    code, told = Command(store, tmp_path / "run", "analyse", *where).end()
    assert code in {0, 1}, told  # dead letters of no main record are findings
    assert told["journeys"] == RECORDS

    code, told = Command(store, tmp_path / "run", "analyse", *where).end()
    assert code in {0, 1}, told  # dead letters of no main record are findings
    assert told["journeys"] == RECORDS
    (tmp_path / "key").write_bytes(ADDRESS)
    code, told = Command(store, tmp_path / "run", "erase", "--key-file", str(tmp_path / "key"), *where).end()
    assert (code, told["rows"]) == (0, 1)
    code, told = Command(store, tmp_path / "run", "compact").end()
    assert code == 0, told
    erased = store.copy(tmp_path / "erased")
    assert places(erased).total() == RECORDS - 1
    assert not [path for path in erased.rglob("*") if path.is_file() and ADDRESS in path.read_bytes()]


def test_two_runs_that_start_at_once(store: Store, group: Group, tmp_path: Path) -> None:
    """Both find no lake and no lease; one of them makes each, and each record is there once."""
    where = ("--broker", group.connection.bootstrap, "--group", group.topology.group)
    runs = [Command(store, tmp_path / f"run-{number}", "archive", *where) for number in range(2)]
    ended = [run.end() for run in runs]
    assert sorted(code for code, _ in ended) in ([0, 0], [0, 3]), ended
    assert all(told["error"]["type"] == "HeldError" for code, told in ended if code), ended
    assert places(store.copy(tmp_path / "lake")).total() == RECORDS

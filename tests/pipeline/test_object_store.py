"""A lake on an object store: Hadoop's S3A against a server of S3's protocol, beside real Kafka.

Not in `make test`: S3A's jars are 690 MB. `pip install 'moto[s3,server]'`, then pytest with `-m soak` and this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow.fs as fs
import pytest
from commands import Command
from delta import places_of
from history import Group
from samples import dead

from retryapp.kafka import KafkaConnection

server = pytest.importorskip("moto.server", reason="needs a server of S3's protocol: pip install 'moto[s3,server]'")

pytestmark = [pytest.mark.extended, pytest.mark.soak, pytest.mark.timeout(1_800)]
RECORDS = 1_000
BUCKET = "lake"
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
ADDRESS = b"ada.lovelace@example.org"


@dataclass
class Store:
    """A bucket, seen without Hadoop."""

    endpoint: str

    @property
    def files(self) -> Any:
        """Arrow's own client of S3."""
        address = self.endpoint.removeprefix("http://")
        given = {"access_key": "a", "secret_key": "b", "region": "us-east-1", "allow_bucket_creation": True}
        return fs.S3FileSystem(endpoint_override=address, scheme="http", **given)

    def copy(self, folder: Path) -> Path:
        fs.copy_files(BUCKET, str(folder), source_filesystem=self.files)
        return folder

    def names(self, *words: str) -> list[str]:
        """Return the paths that have all of these words."""
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


def test_killed_continued_analysed_and_erased(store: Store, connection: KafkaConnection, tmp_path: Path) -> None:
    """Killed in mid-batch, the next run continues at once: nothing is lost, and nothing is there twice."""
    group = Group(connection, partitions=4, has_main=True)
    group.send_dead(RECORDS - 1)
    group.dead(3, dead(RECORDS), key=ADDRESS)

    def run(name: str, *words: str) -> Command:
        line = ("--master", "local[2]", "--memory", "1g", *words)
        return Command(tmp_path / "run", name, *line, lake=f"s3a://{BUCKET}/retries", group=group, **store.settings)

    killed = run("archive", "--rows-per-batch", "100")
    killed.wait_until(lambda: len(store.names("/_delta_log/", ".json")) >= 4)
    killed.kill()
    before = places_of(store.copy(tmp_path / "before") / "retries")
    assert 0 < before.total() < RECORDS, "it was not killed in the middle"

    code, facts = run("archive").end()
    assert code == 0, facts
    assert places_of(store.copy(tmp_path / "after") / "retries") == group.places()

    for _ in range(2):
        code, facts = run("analyse").end()
        assert code in {0, 1}, facts  # dead letters of no main record are findings
        assert facts["journeys"] == RECORDS
    (tmp_path / "key").write_bytes(ADDRESS)
    code, facts = run("erase", "--key-file", str(tmp_path / "key")).end()
    assert (code, facts["rows"]) == (0, 1)
    erased = store.copy(tmp_path / "erased")
    assert places_of(erased / "retries").total() == RECORDS - 1
    assert not [path for path in erased.rglob("*") if path.is_file() and ADDRESS in path.read_bytes()]

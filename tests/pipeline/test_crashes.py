"""Killed at any moment: nothing lost, nothing twice, counted without Spark and from the topics themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta import rows_of
from history import Group
from quick import QUICK_JVM
from samples import dead, waiting

from retryapp.core.headers import encode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_offsets
from retryapp.pipeline.archive import Archive, ArchiveOptions
from retryapp.pipeline.errors import HeldError
from retryapp.pipeline.lake import open_lake
from retryapp.pipeline.session import java_flags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
RECORDS = 2_000
PATIENCE_S = 240.0


@pytest.fixture
def group(connection: KafkaConnection, topology: HandlerTopology) -> Group:
    """Topics with four partitions and many records."""
    made = Group(connection, topology)
    made.make(partitions=4)
    for number in range(RECORDS):
        topic = (topology.retry_topics[0], topology.dlq)[number % 2]
        metadata = (waiting, dead)[number % 2](number)
        made.send(topic, number % 4, b"k%d" % number, b"v" * 100, encode_metadata(metadata))
    made.flush()
    return made


@contextmanager
def started(group: Group, lake: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in a process group of its own, and leave nothing of it."""
    command = [sys.executable, "-m", "retryapp.cli.main", "pipeline", "archive", "--json", "--memory", "512m"]
    command += ["--broker", group.connection.bootstrap, "--group", group.topology.group, "--lake", str(lake)]
    command += ["--conf", f"spark.driver.extraJavaOptions={java_flags(*QUICK_JVM)}"]
    process = subprocess.Popen([*command, *options], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill -9 the driver with its JVM and Python workers: the JVM outlives a killed Python otherwise."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until something is so, while the process runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def in_the_lake(lake: Path) -> Counter[tuple[str, int, int]]:
    """Count each place in the archive, without Spark."""
    return Counter(rows_of(lake / "records", ("topic", "partition", "offset")))


def on_the_topics(group: Group) -> Counter[tuple[str, int, int]]:
    """Count each place on the topics, by another client."""
    topics = (*group.topology.retry_topics, group.topology.dlq, group.topology.events)
    return Counter(
        (topic, partition, offset) for topic in topics for partition, offset, _ in read_offsets(group.connection, topic)
    )


def test_a_driver_killed_in_mid_batch(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """Its batch is begun and not done; the next run finishes it and the rest."""
    lake = tmp_path / "lake"
    notes = lake / "checkpoints" / "archive" / "v1"
    with started(group, lake, "--rows-per-batch", "250", "--master", "local[2]") as process:
        wait_until(
            lambda: len(done := numbers_in(notes, "commits")) >= 2 and len(numbers_in(notes, "offsets")) > len(done),
            process,
        )
        kill(process)
    before = in_the_lake(lake)
    assert 0 < before.total() < RECORDS, "it was not killed in the middle"
    options = ArchiveOptions(group=group.topology.group)
    job = Archive(spark, group.connection, open_lake(spark, str(lake)), options, now_ms=lambda: 2**42)
    result = job.run_once()
    assert result.gaps == ()
    assert in_the_lake(lake) == on_the_topics(group)
    assert in_the_lake(lake).total() == RECORDS


def numbers_in(notes: Path, kind: str) -> set[str]:
    """Return the batches that are begun (``offsets``) or done (``commits``), of the only checkpoint."""
    return {path.name for path in notes.glob(f"*/{kind}/*") if path.name.isdigit()}


def test_a_batch_that_comes_twice_changes_nothing(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """Killed between the table's commit and Spark's own note of it: the same batch is written again."""
    lake = tmp_path / "lake"
    ticks = iter(range(1_000, 1_000_000, 1_000))
    options = ArchiveOptions(group=group.topology.group)
    job = Archive(spark, group.connection, open_lake(spark, str(lake)), options, now_ms=lambda: next(ticks))
    assert job.run_once().rows == RECORDS
    (commit,) = (path for path in (lake / "checkpoints").rglob("commits/*") if path.name.isdigit())
    commit.unlink()
    commit.with_name(f".{commit.name}.crc").unlink()
    group.dead(0, dead(RECORDS))
    again = job.run_once()
    assert again.batches == 2, "the batch did not come again"
    assert in_the_lake(lake) == on_the_topics(group)


def test_a_second_run_beside_the_first_is_refused(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """Cron started it again while it still ran: nothing is there twice."""
    lake = tmp_path / "lake"
    notes = lake / "checkpoints" / "archive" / "v1"
    with started(group, lake, "--rows-per-batch", "500", "--master", "local[1]") as process:
        wait_until(lambda: bool(numbers_in(notes, "commits")), process)
        options = ArchiveOptions(group=group.topology.group)
        job = Archive(spark, group.connection, open_lake(spark, str(lake)), options, now_ms=lambda: 2**42)
        with suppress(HeldError):
            job.run_once()
        process.wait(PATIENCE_S)
    ticks = iter(range(2**42 + 1, 2**43))
    Archive(spark, group.connection, open_lake(spark, str(lake)), options, now_ms=lambda: next(ticks)).run_once()
    assert in_the_lake(lake) == on_the_topics(group)

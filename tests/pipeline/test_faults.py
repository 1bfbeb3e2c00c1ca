"""A disk that fills up and Python workers that are killed, in mid-batch: a named error, nothing lost, nothing twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from delta import rows_of
from history import Group
from samples import dead, waiting

from retryapp.core.headers import encode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_offsets
from retryapp.pipeline.archive import Archive, ArchiveOptions
from retryapp.pipeline.errors import JobFailedError
from retryapp.pipeline.lake import open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300)]
RECORDS = 1_000
PER_BATCH = 200
VALUE_BYTES = 2_000
SMALL, LARGE = "size=1m", "size=64m"


@pytest.fixture
def group(connection: KafkaConnection, topology: HandlerTopology) -> Group:
    """Records that do not compress; every fifth is damaged, so that core's decoder in a Python worker has work."""
    made = Group(connection, topology)
    made.make(partitions=2)
    for number in range(RECORDS):
        topic = (topology.retry_topics[0], topology.dlq)[number % 2]
        headers = encode_metadata((waiting, dead)[number % 2](number))
        damaged = headers if number % 5 else (*headers[:-1], ("retry-attempt", b"?"))
        made.send(topic, number % 2, b"k%d" % number, os.urandom(VALUE_BYTES), damaged)
    made.flush()
    return made


def archive(spark: SparkSession, group: Group, lake: Path) -> Archive:
    """Return the job, in small batches."""
    options = ArchiveOptions(group=group.topology.group, rows_per_batch=PER_BATCH)
    ticks = iter(range(2**42, 2**43))
    return Archive(spark, group.connection, open_lake(spark, str(lake)), options, now_ms=lambda: next(ticks))


def check_all_once(group: Group, lake: Path) -> None:
    """Compare the lake with the topics, each read without Spark."""
    topics = (*group.topology.retry_topics, group.topology.dlq)
    there = [(topic, part, offset) for topic in topics for part, offset, _ in read_offsets(group.connection, topic)]
    assert len(there) == RECORDS
    assert Counter(rows_of(lake / "records", ("topic", "partition", "offset"))) == Counter(there)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that holds about half of the records; skipped where nothing can be mounted."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command, and so no small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = _mount(SMALL, folder)
    if done.returncode != 0:
        pytest.skip(f"no right to mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_disk_that_fills_up(spark: SparkSession, group: Group, small_disk: Path) -> None:
    """The error names the disk; with room again, the next run goes on with what is not there yet."""
    lake = small_disk / "lake"
    with pytest.raises(JobFailedError, match="disk is full"):
        archive(spark, group, lake).run_once()
    assert 0 < len(rows_of(lake / "records", ("offset",))) < RECORDS, "it did not fill up in the middle"
    assert _mount(f"remount,{LARGE}", small_disk).returncode == 0
    result = archive(spark, group, lake).run_once()
    assert result.gaps == ()
    check_all_once(group, small_disk / "lake")


def test_python_workers_killed_in_mid_batch(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """Every worker that a batch gets is killed, until the batch fails; the next run reads it again."""
    lake, over, killed = tmp_path / "lake", threading.Event(), []

    def kill_workers() -> None:
        notes = lake / "checkpoints" / "archive" / "v1"
        while not over.wait(0.005):
            if len(list(notes.glob("*/commits/[0-9]*"))) < 2:
                continue  # so that some batches are done
            for worker in python_workers():
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        with pytest.raises(JobFailedError):
            archive(spark, group, lake).run_once()
    finally:
        over.set()
        killer.join()
    assert killed
    assert 0 < len(rows_of(lake / "records", ("offset",))) < RECORDS, "it did not fail in the middle"
    assert archive(spark, group, lake).run_once().gaps == ()
    check_all_once(group, lake)


def python_workers() -> list[int]:
    """Return the processes that Spark's Python daemon has forked."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process().children(recursive=True):
            parent = child.parent()
            if parent is not None and is_daemon(parent) and is_daemon(child):
                found.append(child.pid)
    return found


def is_daemon(process: psutil.Process) -> bool:
    """Tell whether it is the daemon or one of its forks, which keep its command line."""
    return "pyspark.daemon" in process.cmdline()

"""Drivers and executors killed, disks that fill up, signals: nothing lost, nothing twice, a clean end.

What is in the lake and on the topics is counted without Spark. Each test starts processes of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark
import pytest
from commands import PATIENCE_S, Command, batches
from delta import places_of
from history import Group
from quick import INTERPRETED
from samples import dead
from standalone import Cluster

import retryapp.cli.main
from retryapp.core.headers import encode_metadata
from retryapp.jvm import ensure_jars, spark_jars
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.errors import JobFailedError, failures_named
from retryapp.pipeline.lake import open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.extended]
RECORDS = 2_000
SMALL, LARGE = "size=1m", "size=64m"


@pytest.fixture
def full(connection: KafkaConnection) -> Group:
    """A group with many dead letters in four partitions, and its main topic."""
    made = Group.with_main(connection, partitions=4)
    made.send_dead(RECORDS)
    return made


@pytest.mark.parametrize("killed", ["driver", "java"])
def test_a_driver_killed_in_mid_batch(spark: SparkSession, full: Group, tmp_path: Path, killed: str) -> None:
    """The next run adds what it had not committed. Where Java alone dies the command says so."""
    lake = tmp_path / "lake"
    words = ("--rows-per-batch", "250", "--master", "local[2]")
    with Command(tmp_path, "archive", *words, lake=lake, group=full) as process:
        process.wait_until(lambda: batches(lake) >= 2)
        if killed == "java":
            (java,) = psutil.Process(process.pid).children()
            java.kill()
            code, facts = process.end()
            assert (code, facts["error"]["type"]) == (3, "JobFailedError"), process.log[-3_000:]
            assert "Spark's Java process has ended. The system may have killed it" in facts["error"]["message"]
        process.kill()
    assert 0 < places_of(lake).total() < RECORDS, "it was not killed in the middle"
    again = full.archive(open_lake(spark, str(lake)))
    assert again.run_once(wait_s=PATIENCE_S).gaps == (), "a JVM that is killed has its lock until it is gone"
    assert places_of(lake) == full.places()
    assert places_of(lake).total() == RECORDS


def test_a_signal_to_all_processes(full: Group, tmp_path: Path) -> None:
    """SIGTERM in an archive run, Ctrl-C in an analysis: each ends with a word and 130, and a rerun continues."""
    lake, words = tmp_path / "lake", ("--master", "local[2]")
    with Command(tmp_path, "archive", "--rows-per-batch", "100", *words, lake=lake, group=full) as archive:
        archive.wait_until(lambda: batches(lake))
        assert archive.signal_all(signal.SIGTERM) == 130
        archive.check_clean()
        assert archive.end()[1]["groups"][0]["interrupted"]
    assert 0 < places_of(lake).total() < RECORDS, "it was not stopped in the middle"
    with Command(tmp_path, "analyse", *words, lake=lake, group=full) as analyse:
        analyse.wait_until(lambda: list((lake / "derived").glob("*/readings")))
        assert analyse.signal_all(signal.SIGINT) == 130
        analyse.check_clean()
        error = analyse.end()[1]["error"]
        assert error["type"] == "Interrupted"
        assert "a rerun continues" in error["message"]
    assert places_of(lake) == full.places()
    assert not list((lake / "derived").glob("analysis.*.json")), "it was not stopped in the middle"
    with Command(tmp_path, "analyse", *words, lake=lake, group=full) as again:
        code, facts = again.end()
        assert code in {0, 1}, facts  # dead letters of no main record are findings
        assert facts["journeys"] == RECORDS
        again.check_clean()
    assert len(list((lake / "derived").glob("analysis.*.json"))) == 1


def test_kill_9_in_the_steps_of_an_analysis(full: Group, spark: SparkSession, tmp_path: Path) -> None:
    """Whatever it had written, the next run has each record once, and leaves nothing of the killed ones."""
    lake, words = tmp_path / "lake", ("--master", "local[2]")
    for step in ("*/readings", "*/journeys", "*/rollup"):
        with Command(tmp_path, "analyse", *words, lake=lake, group=full) as analyse:
            known = set((lake / "derived").glob(step))
            analyse.wait_until(lambda known=known, step=step: set((lake / "derived").glob(step)) - known)
            analyse.kill()
        assert not list((lake / "derived").glob("analysis.*.json")), "it was not killed in the middle"
    with Command(tmp_path, "analyse", *words, lake=lake, group=full) as again:
        code, facts = again.end()
    assert (code in {0, 1}, facts["journeys"], facts["is_new"]) == (True, RECORDS, True)
    opened = open_lake(spark, str(lake))
    found = [row["failure_id"] for row in Derived(opened).read("journeys").collect()]
    assert (len(found), len(set(found))) == (RECORDS, RECORDS)
    run_id = facts["run_id"]
    left = {path.name for path in (lake / "derived").iterdir()}
    assert left == {"analysis.000000001.json", run_id, f"readings-{run_id}"}


def test_sigterm_before_there_is_a_session(full: Group, tmp_path: Path) -> None:
    """The JVM has been started and does not serve yet: the command ends, and the JVM with it."""
    with Command(tmp_path, "archive", lake=tmp_path / "lake", group=full) as starting:
        starting.wait_until(lambda: psutil.Process(starting.pid).children())
        assert starting.signal_all(signal.SIGTERM) == 130
        starting.check_clean()


def test_a_setting_that_spark_does_not_take_is_named(tmp_path: Path) -> None:
    """Spark looks at it late: the command has ended before."""
    wrong = {"spark.sql.shuffle.partitions": "many"}
    with Command(tmp_path, "report", lake=tmp_path / "lake", **wrong) as report:
        code, facts = report.end()
    assert (code, facts["error"]["type"]) == (3, "SparkStartError"), facts
    assert "spark.sql.shuffle.partitions" in facts["error"]["message"]


def test_an_analysis_beside_an_archive_that_continues(full: Group, tmp_path: Path) -> None:
    """Both do their work: the analysis takes its turn between two rounds, and each record is there once."""
    lake = tmp_path / "lake"

    with Command(tmp_path, "archive", "--every", "50ms", "--master", "local[1]", lake=lake, group=full) as archive:
        archive.wait_until(lambda: batches(lake))
        with Command(tmp_path / "other", "analyse", lake=lake, group=full) as analyse:
            code, facts = analyse.end()
        assert code in {0, 1}, facts  # dead letters of no main record are findings
        assert [each["group"] for each in facts["archived"]] == [full.topology.group]
        before = batches(lake)
        full.send_dead(4)
        archive.wait_until(lambda: batches(lake) > before)
        assert archive.signal_all(signal.SIGTERM) in {0, 130}
    assert places_of(lake) == full.places()


# -- a cluster ---------------------------------------------------------------------------------------------------


def test_an_executor_killed_in_mid_batch(cluster: Cluster, full: Group, tmp_path: Path) -> None:
    """Its tasks run again elsewhere: each record is there once."""
    lake = tmp_path / "lake"
    words = ("--master", cluster.url, "--rows-per-batch", "1000")
    with Command(tmp_path, "archive", *words, lake=lake, group=full, **cluster.settings) as driver:
        driver.wait_until(lambda: len(cluster.executors()) == 2)
        driver.wait_until(lambda: batches(lake))
        cluster.executors()[0].kill()
        assert driver.wait(PATIENCE_S) == 0, driver.log[-3_000:]
    assert places_of(lake) == full.places()


def test_workers_that_do_not_see_the_lake_are_named(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """As on machines that do not share a path; nothing is taken for archived."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no right to give a process a disk of its own")
    group.send_dead(4)
    lake = open_lake(spark, str(tmp_path / "lake"))
    cluster = Cluster(tmp_path, apart=tmp_path / "lake")
    settings = cluster.settings
    try:
        with Command(tmp_path, "archive", "--master", cluster.url, lake=lake.uri, group=group, **settings) as driver:
            code, facts = driver.end()
    finally:
        cluster.stop()
    assert (code, facts["error"]["type"]) == (3, "LakeNotSharedError"), facts
    assert "remove the lake, which is new. Then mount its folder on all nodes" in facts["error"]["message"]
    shutil.rmtree(tmp_path / "lake")
    assert group.archive(lake).run_once().rows == 4
    assert places_of(tmp_path / "lake") == group.places()


def test_spark_submit_archives_and_analyses_on_a_cluster(
    cluster: Cluster, connection: KafkaConnection, cache_dir: Path, tmp_path: Path
) -> None:
    """With the jars alone: Delta's settings come with them, and executors get the jars from the driver."""
    from retryapp.pipeline.session import java_home

    group = Group.with_main(connection, partitions=2)
    group.send_dead(4)
    lake, page = tmp_path / "lake", tmp_path / "report.html"
    home = Path(pyspark.__path__[0])
    jars = ",".join(map(str, ensure_jars(cache_dir, spark_jars())))
    line = [str(home / "bin" / "spark-submit"), "--master", cluster.url, "--driver-memory", "512m", "--jars", jars]
    line += [
        word for name, value in {**cluster.settings, **INTERPRETED}.items() for word in ("--conf", f"{name}={value}")
    ]
    line += [str(retryapp.cli.main.__file__), "pipeline", "analyse", "--broker", connection.bootstrap]
    line += ["--group", group.topology.group, "--lake", str(lake), "--report", str(page), "--json"]
    variables = {**os.environ, "JAVA_HOME": str(java_home(cache_dir)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    facts = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
    assert (facts["archived"][0]["rows"], facts["journeys"], facts["sound"]) == (4, 4, True)
    assert facts["report"]["totals"]["dead"] == 4
    assert places_of(lake) == group.places()
    assert "</html>" in page.read_text()


# -- a fault in the middle of a batch ----------------------------------------------------------------------------


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
    """The error names the disk; with room again, the next run adds what is not there yet."""
    for number in range(RECORDS // 2):  # that do not compress
        group.send(group.topology.dlq, number % 2, b"k", os.urandom(2_000), encode_metadata(dead(number)))
    group.flush()
    folder = small_disk / "lake"
    job = group.archive(open_lake(spark, str(folder)), rows_per_batch=200)
    with pytest.raises(JobFailedError, match="disk is full"), failures_named("archive"):
        job.run_once()
    assert 0 < places_of(folder).total() < RECORDS // 2, "it did not fill up in the middle"
    assert _mount(f"remount,{LARGE}", small_disk).returncode == 0
    assert job.run_once().gaps == ()
    assert places_of(folder) == group.places()

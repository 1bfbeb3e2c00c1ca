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
from commands import PATIENCE_S, Cluster, Command, batches
from delta import places_of
from history import Group
from quick import INTERPRETED
from samples import dead

import retryapp.cli.main
from retryapp.core.headers import encode_metadata
from retryapp.jvm import ensure_jars, spark_jars
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.errors import JobFailedError, failures_named
from retryapp.pipeline.lake import open_lake
from retryapp.pipeline.session import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.extended]
RECORDS = 2_000
SMALL, LARGE = "size=1m", "size=64m"


@pytest.fixture
def full(connection: KafkaConnection) -> Group:
    """A group with many dead letters in four partitions, and its main topic."""
    made = Group(connection, partitions=4, has_main=True)
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


def test_whatever_ends_a_run_the_next_one_continues(full: Group, spark: SparkSession, tmp_path: Path) -> None:
    """SIGTERM in an archive run, also while its JVM starts; kill -9 and Ctrl-C in an analysis.

    After a signal it ends clean, with a word and 130. Whatever was written, the last run has each record once, and
    leaves nothing of the others.
    """
    lake, derived, words = tmp_path / "lake", tmp_path / "lake" / "derived", ("--master", "local[2]")
    with Command(tmp_path, "archive", lake=lake, group=full) as starting:
        starting.wait_until(lambda: psutil.Process(starting.pid).children())
        assert starting.signal_all(signal.SIGTERM) == 130
        starting.check_clean()
    with Command(tmp_path, "archive", "--rows-per-batch", "100", *words, lake=lake, group=full) as archive:
        archive.wait_until(lambda: batches(lake))
        assert archive.signal_all(signal.SIGTERM) == 130
        archive.check_clean()
        assert archive.end()[1]["groups"][0]["interrupted"]
    assert 0 < places_of(lake).total() < RECORDS, "it was not stopped in the middle"
    kill, ctrl_c = signal.SIGKILL, signal.SIGINT
    for step, number in (("readings", kill), ("journeys", kill), ("rollup", kill), ("readings", ctrl_c)):
        with Command(tmp_path / number.name, "analyse", *words, lake=lake, group=full) as analyse:
            known = set(derived.glob(f"*/{step}"))
            analyse.wait_until(lambda known=known, step=step: set(derived.glob(f"*/{step}")) - known)
            code = analyse.signal_all(number)
        assert not list(derived.glob("analysis.*.json")), "it was not ended in the middle"
    analyse.check_clean()
    error = analyse.end()[1]["error"]
    assert (code, error["type"]) == (130, "Interrupted")
    assert "a rerun continues" in error["message"]
    assert places_of(lake) == full.places()
    with Command(tmp_path, "analyse", *words, lake=lake, group=full) as again:
        code, facts = again.end()
        again.check_clean()
    assert (code in {0, 1}, facts["journeys"], facts["is_new"]) == (True, RECORDS, True)
    found = [row["failure_id"] for row in Derived(open_lake(spark, str(lake))).read("journeys").collect()]
    assert (len(found), len(set(found))) == (RECORDS, RECORDS)
    run_id = facts["run_id"]
    assert {path.name for path in derived.iterdir()} == {"analysis.000000001.json", run_id, f"readings-{run_id}"}


def test_a_java_that_has_not_answered_yet_ends_with_the_command(tmp_path: Path) -> None:
    """It found the file for its port gone, and kept running, of no use."""

    def java_runs() -> bool:
        found = psutil.process_iter(["ppid", "cmdline"], ad_value=())  # Java's launcher ends meanwhile
        words = [word for each in found if each.info["ppid"] == report.pid for word in each.info["cmdline"]]
        return any("SparkSubmit" in word for word in words)

    with Command(tmp_path, "report", lake=tmp_path / "lake") as report:
        report.wait_until(java_runs)
        assert report.signal_all(signal.SIGINT) == 130
        report.check_clean()


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


@pytest.fixture
def java(cache_dir: Path) -> Path:
    """What clusters and spark-submit run on."""
    return java_home(cache_dir)


def test_a_cluster_archives_and_analyses(full: Group, java: Path, cache_dir: Path, tmp_path: Path) -> None:
    """An executor is killed in mid-batch: its tasks run again elsewhere, and each record is there once.

    Then by spark-submit with the jars alone: Delta's settings come with them, and executors get them from the driver.
    """
    lake, page, home = tmp_path / "lake", tmp_path / "report.html", Path(pyspark.__path__[0])
    jars = ",".join(map(str, ensure_jars(cache_dir, spark_jars())))
    with Cluster(tmp_path, java) as cluster:
        words = ("--master", cluster.url, "--rows-per-batch", "1000")
        with Command(tmp_path, "archive", *words, lake=lake, group=full, **cluster.settings) as driver:
            driver.wait_until(lambda: len(cluster.executors()) == 2)
            driver.wait_until(lambda: batches(lake))
            cluster.executors()[0].kill()
            assert driver.wait(PATIENCE_S) == 0, driver.log[-3_000:]
        assert places_of(lake) == full.places()

        full.send_dead(4)
        line = [str(home / "bin" / "spark-submit"), "--master", cluster.url, "--driver-memory", "512m", "--jars", jars]
        for name, value in {**cluster.settings, **INTERPRETED}.items():
            line += ["--conf", f"{name}={value}"]
        line += [str(retryapp.cli.main.__file__), "pipeline", "analyse", *full.where]
        line += ["--lake", str(lake), "--report", str(page), "--json"]
        env = {**os.environ, "JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    facts = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
    assert (facts["archived"][0]["rows"], facts["journeys"], facts["sound"]) == (4, RECORDS, True)
    assert facts["report"]["totals"]["dead"] == RECORDS
    assert places_of(lake) == full.places()
    assert "</html>" in page.read_text()


def test_workers_that_do_not_see_the_lake_are_named(
    spark: SparkSession, group: Group, java: Path, tmp_path: Path
) -> None:
    """As on machines that do not share a path; nothing is taken for archived."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no right to give a process a disk of its own")
    group.send_dead(4)
    lake = open_lake(spark, str(tmp_path / "lake"))
    with Cluster(tmp_path, java, apart=tmp_path / "lake") as cluster:
        where = ("--master", cluster.url)
        with Command(tmp_path, "archive", *where, lake=lake.uri, group=group, **cluster.settings) as driver:
            code, facts = driver.end()
    assert (code, facts["error"]["type"]) == (3, "LakeNotSharedError"), facts
    assert "remove the lake, which is new. Then mount its folder on all nodes" in facts["error"]["message"]
    shutil.rmtree(tmp_path / "lake")
    assert group.archive(lake).run_once().rows == 4
    assert places_of(tmp_path / "lake") == group.places()


# -- a fault in the middle of a batch ----------------------------------------------------------------------------


def is_mounted(options: str, folder: Path) -> bool:
    """Give a folder a file system in memory, or another size to it."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return shutil.which("mount") is not None and subprocess.run(command, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that holds about half of the records."""
    (folder := tmp_path / "disk").mkdir()
    if not is_mounted(SMALL, folder):
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


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
    assert is_mounted(f"remount,{LARGE}", small_disk)
    assert job.run_once().gaps == ()
    assert places_of(folder) == group.places()

"""Lakes that are new, of earlier or later versions, wrong or damaged; the files in them, and who may write to them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from delta import places_of
from history import Group
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.errors import LakeUnusableError, NewerLakeError, OtherRunError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.hold import RECORDS_HOLD, Holds
from retryapp.pipeline.lake import Files, Lake, open_lake
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("mark", "error", "named"),
    [
        (
            '{"format": 1, "tables": "parquet", "salt": "00"}',
            LakeUnusableError,
            "its tables are parquet, and only Delta",
        ),
        ('{"format": 99, "tables": "delta", "salt": "00"}', NewerLakeError, "99"),
        ("", LakeUnusableError, r"lake.json in it is empty, .*: remove it"),
    ],
)
def test_a_lake_of_another_make_is_refused_and_not_changed(
    spark: SparkSession, tmp_path: Path, mark: str, error: type[Exception], named: str
) -> None:
    """Earlier versions made lakes of Parquet files; into one of a later version an older retryapp must not write.

    A first run that was killed may leave an empty mark.
    """
    (tmp_path / "lake.json").write_text(mark)
    with pytest.raises(error, match=named):
        open_lake(spark, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lake.json"]


def test_a_fact_that_is_half_written_is_written_again(spark: SparkSession, tmp_path: Path) -> None:
    """A full disk, or kill -9 between opening and closing its file, leaves it empty or cut off."""
    facts = Facts(open_lake(spark, str(tmp_path)))
    facts.put("runs", "one", {"state": "started"})
    for left in (b"", b'{"state": "fin', '{"state": "ü'.encode()[:-1]):
        place = tmp_path / "runs" / "two.json"
        place.write_bytes(left)
        (tmp_path / "runs" / ".two.json.crc").unlink(missing_ok=True)
        assert facts.rows("runs") == [{"state": "started"}]
        facts.put("runs", "two", {"state": "finished"})
        facts.put("runs", "two", {"state": "failed"})
        assert facts.rows("runs") == [{"state": "started"}, {"state": "finished"}]


def test_a_lake_whose_first_run_had_no_room_is_made_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """A disk with room for the folder and none for a byte leaves no mark."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        with pytest.raises(LakeUnusableError, match="File too large"):
            open_lake(spark, str(tmp_path / "lake"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "lake").iterdir()) == []
    assert open_lake(spark, str(tmp_path / "lake")).salt


@pytest.mark.parametrize(
    ("place", "problem"), [("nosuch://host/lake", ""), ("/proc/lake", ""), (__file__, "Not a directory")]
)
def test_a_wrong_place_is_named(spark: SparkSession, place: str, problem: str) -> None:
    """With what a right one looks like."""
    with pytest.raises(LakeUnusableError, match=f"{problem}.* s3a:"):
        open_lake(spark, place)


def test_a_folder_that_this_user_may_not_read_is_not_taken_for_missing(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table in it would be called gone."""
    lake.files.create(f"{lake.uri}/gaps/one.json", "{}")
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError(13, "Permission denied", "lake/gaps")))
    with pytest.raises(LakeUnusableError, match="lake/gaps: Permission denied"):
        open_lake(spark, lake.uri)


def test_a_file_is_made_by_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake's mark among them, whose salt must not be two; also through Hadoop, as on other file systems."""
    files, tries = lake.files, 8
    begin = threading.Barrier(tries)

    def make(place: str, text: str) -> bool:
        begin.wait()
        return files.create(place, text)

    for number in range(20):
        place = f"{lake.uri}/some/{number}.json"
        with ThreadPoolExecutor(tries) as pool:
            made = list(pool.map(make, [place] * tries, map(str, range(tries))))
        assert made.count(True) == 1
        assert files.read(place) == str(made.index(True))
    monkeypatch.setattr(Files, "local_folder", lambda files, uri: None)
    place = f"{lake.uri}/some/hadoop.json"
    assert [files.create(place, text) for text in ("first", "second")] == [True, False]
    assert files.read(place) == "first"


OLDER = """
    cluster_id string, topic_id string, epoch int, topic string, partition int, offset bigint, timestamp_ms bigint,
    date date, key binary, value binary, headers array<struct<key: string, value: binary>>, key_hash string,
    group string, main string, station string, failure_id string, unreadable string,
    metadata struct<version: bigint, origin: struct<topic: string, topic_id: string>, history: array<struct<n: bigint>>>
"""
"""As of a version that parsed what it archived, and wrote no ``run_id``."""


def test_an_older_table_is_continued(spark: SparkSession, group: Group, lake: Lake, tmp_path: Path) -> None:
    """Its rows stay, without the columns that they lack, and say how far it had come; it has no state yet."""
    group.dead(0, dead(0))
    group.dead(0, dead(1))
    dlq = group.topology.dlq
    place = lake.table(RECORDS_TABLE)
    spark.sql(f"CREATE TABLE {quoted(place)} ({OLDER}) USING delta PARTITIONED BY (date)")
    known = {
        "cluster_id": group.admin.cluster_id(), "topic_id": group.admin.describe_topics([dlq])[dlq].topic_id,
        "epoch": 1, "topic": dlq, "partition": 0, "offset": 0, "date": date(2020, 1, 1),
        "group": group.topology.group, "main": group.topology.main, "station": "dlq",
        "headers": encode_metadata(dead(0)), "failure_id": "g/t@i/0/0",
    }  # fmt: skip
    schema = spark.read.format("delta").load(place).schema
    row = tuple(known.get(name) for name in schema.fieldNames())
    spark.createDataFrame([row], schema).write.format("delta").mode("append").save(place)
    job, tables = group.archive(lake), Tables(lake)
    assert job.run_once().rows == 1
    assert places_of(tmp_path / "lake") == group.places()
    first, second = tables.read().orderBy("offset").select("run_id", "failure_id").collect()
    assert tuple(first) == (None, "g/t@i/0/0"), "what it had parsed stays, and nothing reads it"
    assert tuple(second) == (read_state(tables).run_id, None)
    said = [row["said"]["failure_id"] for row in readings_of(tables.read()).orderBy("found_offset").collect()]
    assert said == [dead(0).failure_id, dead(1).failure_id]
    assert job.run_once().rows == 0


def test_a_lock_outlives_a_second_try_of_its_own_process(lake: Lake) -> None:
    """The system drops all locks of a process on a file when the process closes it once: another program looks."""
    holds = Holds(lake)
    with holds.take("archive", RECORDS_HOLD):
        with pytest.raises(OtherRunError), holds.take("vacuum", RECORDS_HOLD):
            pass
        place = Path(lake.uri.removeprefix("file://"), "holds", RECORDS_HOLD, "lock")
        program = f"import fcntl; fcntl.lockf(open({str(place)!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in other.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_folder_without_locks_is_refused(spark: SparkSession, lake: Lake) -> None:
    """No run could keep another from writing. A file that Java may only read stands in for such a disk."""

    def unlockable(place: str, _: str) -> Any:
        Path(place).touch()
        return spark._jvm.java.io.RandomAccessFile(place, "r")  # type: ignore[union-attr]

    session = Mock()
    session._jvm.java.io.RandomAccessFile = unlockable
    holds = Holds(replace(lake, spark=session))
    with pytest.raises(LakeUnusableError, match="it cannot be locked"), holds.take("archive", "one"):
        pytest.fail("nothing is held")
    with Holds(lake).take("archive", "one"):
        pass

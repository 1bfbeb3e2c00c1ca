"""Lakes that are new, of earlier or later versions, wrong or damaged; and the files in them."""

from __future__ import annotations

import json
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from delta import places_of
from history import Group
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.errors import LakeUnusableError, NewerLakeError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.lake import Files, Lake, open_lake
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("facts", "error", "named"),
    [
        ({"format": 1, "tables": "parquet"}, LakeUnusableError, "its tables are parquet, and only Delta"),
        ({"format": 99, "tables": "delta"}, NewerLakeError, "99"),
    ],
)
def test_a_lake_of_another_make_is_refused_and_not_changed(
    spark: SparkSession, tmp_path: Path, facts: dict[str, object], error: type[Exception], named: str
) -> None:
    """Earlier versions made lakes of Parquet files; into one of a later version an older retryapp must not write."""
    (tmp_path / "lake.json").write_text(json.dumps({**facts, "salt": "00"}))
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
    """A disk with room for the folder and none for a byte leaves no mark; one of a killed run is named as empty."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        with pytest.raises(LakeUnusableError, match="File too large"):
            open_lake(spark, str(tmp_path / "lake"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "lake").iterdir()) == []
    assert open_lake(spark, str(tmp_path / "lake")).salt
    (tmp_path / "lake.json").touch()
    with pytest.raises(LakeUnusableError, match=r"lake.json in it is empty, .*: remove it"):
        open_lake(spark, str(tmp_path))


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


def test_a_file_is_made_by_one(lake: Lake) -> None:
    """The lake's mark among them, whose salt must not be two."""
    files, tries = lake.files, 8
    for number in range(20):
        begin = threading.Barrier(tries)
        place = f"{lake.uri}/some/{number}.json"

        def make(one: int, begin: threading.Barrier = begin, place: str = place) -> bool:
            begin.wait()
            return files.create(place, str(one))

        with ThreadPoolExecutor(tries) as pool:
            made = list(pool.map(make, range(tries)))
        assert made.count(True) == 1
        assert files.read(place) == str(made.index(True))


def test_a_file_is_made_once_through_hadoop(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that are not this machine's."""
    monkeypatch.setattr(Files, "local_folder", lambda files, uri: None)
    files, place = lake.files, f"{lake.uri}/some/one.json"
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

"""Lakes that are new, newer, wrong, or without Delta; jobs that are stopped; brokers that want a login."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from history import Group
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.archive import Archive, ArchiveOptions
from retryapp.pipeline.errors import LakeUnusableError, NewerLakeError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.lake import open_lake
from retryapp.pipeline.outlook import find_outlook
from retryapp.pipeline.tables import RECORDS_TABLE, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def group(connection: KafkaConnection, topology: HandlerTopology) -> Group:
    """Topics with two partitions."""
    made = Group(connection, topology)
    made.make(partitions=2)
    return made


def test_a_lake_is_opened_as_it_was_made(spark: SparkSession, tmp_path: Path) -> None:
    """Its salt stays; its format cannot be changed by an option."""
    made = open_lake(spark, str(tmp_path), wanted="parquet")
    assert open_lake(spark, str(tmp_path)) == made
    with pytest.raises(LakeUnusableError, match="parquet, not delta"):
        open_lake(spark, str(tmp_path), wanted="delta")


def test_a_newer_lake_is_refused_and_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    """An older retryapp must not write into it."""
    mark = tmp_path / "lake.json"
    mark.write_text(json.dumps({"format": 99, "tables": "delta", "salt": "00"}))
    with pytest.raises(NewerLakeError, match="99"):
        open_lake(spark, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lake.json"]


def test_a_fact_that_is_half_written_is_written_again(spark: SparkSession, tmp_path: Path) -> None:
    """A full disk, or kill -9 between opening and closing its file, leaves it empty or cut off."""
    facts = Facts(spark, open_lake(spark, str(tmp_path)))
    assert facts.put("runs", "one", {"state": "started"})
    for left in ("", '{"state": "fin'):
        place = tmp_path / "runs" / "two.json"
        place.write_text(left)
        (tmp_path / "runs" / ".two.json.crc").unlink(missing_ok=True)
        assert facts.rows("runs") == [{"state": "started"}]
        assert facts.put("runs", "two", {"state": "finished"})
        assert not facts.put("runs", "two", {"state": "failed"})
        assert facts.rows("runs") == [{"state": "started"}, {"state": "finished"}]


@pytest.mark.parametrize("place", ["nosuch://host/lake", "/proc/lake"])
def test_a_wrong_place_is_named(spark: SparkSession, place: str) -> None:
    """With what a right one looks like."""
    with pytest.raises(LakeUnusableError, match="s3a:"):
        open_lake(spark, place)


def test_parquet_instead_of_delta(spark: SparkSession, group: Group, tmp_path: Path) -> None:
    """The same rows; a lost checkpoint costs nothing either."""
    import shutil

    lake = open_lake(spark, str(tmp_path), wanted="parquet")
    job = Archive(spark, group.connection, lake, ArchiveOptions(group=group.topology.group), now_ms=lambda: 1)
    for number in range(4):
        group.dead(number % 2, dead(number))
    assert job.run_once().rows == 4
    shutil.rmtree(tmp_path / "checkpoints")
    group.dead(0, dead(4))
    assert job.run_once().rows == 1
    rows = Tables(spark, lake).read(RECORDS_TABLE).collect()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert {row["metadata"]["reason"] for row in rows} == {"exhausted"}


@pytest.mark.parametrize("wanted", ["delta", "parquet"])
def test_a_lake_lies_in_the_folder_that_was_named(
    spark: SparkSession, group: Group, tmp_path: Path, wanted: str
) -> None:
    """Whatever its name: nothing in it is taken for a URI's."""
    folder = tmp_path / "what failed, 100%20 ü"
    lake = open_lake(spark, str(folder), wanted=wanted)
    group.dead(0, dead(0))
    job = Archive(spark, group.connection, lake, ArchiveOptions(group=group.topology.group), now_ms=lambda: 1)
    assert job.run_once().rows == 1
    assert Tables(spark, open_lake(spark, str(folder))).read(RECORDS_TABLE).count() == 1
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_job_that_is_told_to_stop_ends_between_batches_and_goes_on_later(
    spark: SparkSession, group: Group, tmp_path: Path
) -> None:
    """As Ctrl-C does; the rest comes with the next run."""
    for number in range(60):
        group.send(group.topology.dlq, number % 2, b"k", b"v", encode_metadata(dead(number)))
    group.flush()
    lake, stopped = open_lake(spark, str(tmp_path)), threading.Event()
    ticks = iter(range(1_000, 9_000))
    options = ArchiveOptions(group=group.topology.group, rows_per_batch=2)
    job = Archive(spark, group.connection, lake, options, now_ms=lambda: next(ticks))
    first = job.run_once(on_progress=lambda _: stopped.set(), stopped=stopped)
    assert first.interrupted
    assert 0 < first.rows < 60
    options = ArchiveOptions(group=group.topology.group)
    Archive(spark, group.connection, lake, options, now_ms=lambda: next(ticks)).run_once()
    rows = Tables(spark, lake).read(RECORDS_TABLE).select("partition", "offset").collect()
    assert sorted(map(tuple, rows)) == [(partition, offset) for partition in (0, 1) for offset in range(30)]


def test_the_outlook_tells_what_is_behind_and_when_it_is_lost(
    spark: SparkSession, group: Group, tmp_path: Path
) -> None:
    """Before a run and after it."""
    lake = open_lake(spark, str(tmp_path))
    group.dead(0, dead(0))
    group.dead(0, dead(1))
    before = {found.topic: found for found in find_outlook(spark, lake, group.admin, group.topology.group)}
    dlq = before[group.topology.dlq]
    assert (dlq.behind, dlq.lost_offsets, dlq.epoch) == (2, 0, 1)
    assert dlq.oldest_unread_ms is not None
    assert dlq.loss_at_ms == dlq.oldest_unread_ms + 30 * 86_400_000
    assert before[group.topology.events].behind == 0
    options = ArchiveOptions(group=group.topology.group)
    Archive(spark, group.connection, lake, options, now_ms=lambda: 1).run_once()
    after = {found.topic: found for found in find_outlook(spark, lake, group.admin, group.topology.group)}
    assert (after[group.topology.dlq].behind, after[group.topology.dlq].loss_at_ms) == (0, None)

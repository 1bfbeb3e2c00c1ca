"""How far the archive has come is what its table says: no clock, no file beside it, no other table."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta import places_of
from history import Group
from samples import waiting

from retryapp.kafka import KafkaAdmin, Positions
from retryapp.pipeline import archive
from retryapp.pipeline.errors import OtherClusterError, OtherRunError, TableReplacedError
from retryapp.pipeline.lake import Files, Lake
from retryapp.pipeline.positions import DELETED, RETENTION, find_outlook
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.mark.extended
def test_small_files_are_joined_and_the_state_is_found_behind_that(
    group: Group, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fiftieth batch does it, of whichever process; every round reads as few files of the log."""
    monkeypatch.setattr(archive, "JOIN_EVERY", 3)
    tables, read, look = Tables(lake), list[str](), Files.read
    monkeypatch.setattr(Files, "read", lambda files, uri: (read.append(uri), look(files, uri))[1])
    for count, joined in ((4, False), (2, True), (1, False), (0, False)):
        group.send_dead(count)
        assert group.archive(lake, rows_per_batch=2).run_once().rows == count
        read.clear()
        state = read_state(tables)
        assert len(read) == 2 + joined, "the mark of the last checkpoint, and commits"
        rows = tables.read()
        days = rows.select("date").distinct().count()
        assert len(rows.inputFiles()) == (days if joined else days + 1), "each batch adds one"
    assert state.sequence == 4
    assert places_of(tmp_path / "lake") == group.places()


@pytest.mark.extended
def test_a_restored_table_is_archived_again(spark: SparkSession, group: Group, lake: Lake, tmp_path: Path) -> None:
    """From the state of that version; what topics have lost since is a gap."""
    job, table, dlq = group.archive(lake), quoted(lake.table(RECORDS_TABLE)), group.topology.dlq
    group.send_dead(6)
    job.run_once()
    version = next(Tables(lake).commits())["version"]
    group.send_dead(6)
    job.run_once()
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')")
    spark.sql(f"RESTORE {table} TO VERSION AS OF {version}").collect()
    group.operator.delete_records(dlq, 0, 5)
    result = job.run_once()
    assert [(gap.partition, gap.from_offset, gap.to_offset, gap.reason) for gap in result.gaps] == [
        (0, 3, 5, RETENTION)
    ]
    assert result.rows == 4
    assert places_of(tmp_path / "lake") == group.places() + Counter((dlq, 0, offset) for offset in range(3))
    rows = Tables(lake).read()  # overwritten, its log no longer says how far it reaches
    rows.where("offset < 4").write.format("delta").mode("overwrite").save(lake.table(RECORDS_TABLE))
    assert job.run_once().rows == 3
    assert places_of(tmp_path / "lake").total() == 10


def test_a_table_that_is_gone_or_of_another_lake_is_refused(
    group: Group, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one in its place would hide what is lost; and two clusters are not mixed."""
    job, folder = group.archive(lake), tmp_path / "lake"
    group.send_dead(2)
    job.run_once()
    with monkeypatch.context() as other:
        other.setattr(KafkaAdmin, "cluster_id", lambda _: "another")
        with pytest.raises(OtherClusterError, match="'another'"):
            job.run_once()
    with monkeypatch.context() as other:
        other.setattr(Lake, "id", "another")
        with pytest.raises(TableReplacedError, match="another lake"):
            job.run_once()
    shutil.move(folder / "records", tmp_path / "away")
    with pytest.raises(TableReplacedError, match=r"it is gone\. Put that table back; .*records\.json"):
        job.run_once()
    assert not (folder / "records").exists()
    (folder / "records.json").unlink()
    assert job.run_once().rows == 2


def test_a_deleted_topic_is_a_gap(group: Group, lake: Lake) -> None:
    """With what was not read of it, once; what is left of its handler is archived, though nothing names it any more."""
    job = group.archive(lake)
    group.send_dead(2)
    job.run_once()
    group.send_dead(25)
    group.retry(0, waiting(0), key=b"k", value=b"v")
    for name in (group.topology.dlq, group.topology.pending_changelog):
        group.operator.delete_topic(name)
    outlook = {topic.topic: topic for topic in find_outlook(lake, group.admin, group.topology.group)}
    assert [topic for topic, seen in outlook.items() if seen.at_risk(0)] == [group.topology.dlq]
    result = job.run_once()
    assert [(gap.partition, gap.from_offset, gap.to_offset, gap.reason) for gap in result.gaps] == [
        (0, 1, None, DELETED),
        (1, 1, None, DELETED),
    ]
    assert result.rows == 1
    assert job.run_once().gaps == ()
    group.make()
    again = job.run_once()
    assert (again.gaps, [life.epoch for life in again.new_lives]) == ((), [2])


def test_of_two_writers_one_is_refused(group: Group, lake: Lake, tmp_path: Path) -> None:
    """Where no lock keeps them apart, Delta's own sequence does: the later one writes nothing."""
    group.send_dead(4)
    first, second = group.archive(lake), group.archive(lake)
    rows = second._rows

    def overtaken(*arguments: object) -> object:
        second._rows = rows
        first._holds = second._holds = unlocked
        assert first.run_once().rows == 4
        return rows(*arguments)

    unlocked = second._holds
    unlocked._folder = None
    second._rows = overtaken
    with pytest.raises(OtherRunError, match="nothing was written twice"):
        second.run_once()
    assert places_of(tmp_path / "lake") == group.places()


def test_what_an_open_transaction_holds_back_is_behind(group: Group, lake: Lake) -> None:
    """It cannot be read yet, and is not archived either."""
    job, topic = group.archive(lake), group.topology.dlq
    group.send_dead(2)
    job.run_once()
    producer = group.begin(topic, [b"open"], 0)
    group.send_dead(4)

    def seen() -> tuple[int, int]:
        outlook = find_outlook(lake, group.admin, group.topology.group)
        return next((each.behind, each.undecided) for each in outlook if each.topic == topic)

    try:
        assert seen() == (5, 3)
    finally:
        producer.abort_transaction(20)
    Positions(group.connection).settled_ends([(topic, 0)])
    assert seen() == (6, 0), "with the transaction's mark"

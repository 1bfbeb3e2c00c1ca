"""The archive on real Kafka: each record once, with its bytes and their meaning.

How far it has come is what its table says: no clock, no file beside it, no other table.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta import places_of
from history import Group
from samples import dead, waiting

from retryapp.core.headers import encode_metadata
from retryapp.kafka import KafkaAdmin, Positions
from retryapp.pipeline import archive
from retryapp.pipeline.errors import OtherClusterError, OtherRunError, TableReplacedError, TopicChangedError
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.lake import Files, Lake, open_lake
from retryapp.pipeline.positions import DELETED, IN_DOUBT, RECREATED, RETENTION, TopicOutlook, find_outlook
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
STRANGE_FOLDER = "what failed, 100%20 ü"
"""Nothing in a path is taken for a URI's."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the lakes of this file lie."""
    return tmp_path / STRANGE_FOLDER


@pytest.fixture
def lake(spark: SparkSession, folder: Path) -> Lake:
    return open_lake(spark, str(folder))


def gaps_of(result: archive.Archived) -> list[tuple[str, int, int | None, int | None]]:
    return [(gap.reason, gap.partition, gap.from_offset, gap.to_offset) for gap in result.gaps]


def test_each_record_once_with_its_bytes(group: Group, lake: Lake, folder: Path) -> None:
    """Null differs from empty, unreadable records are kept, aborted ones are not read; no rerun has a record again."""
    group.retry(0, waiting(0), key=b"\x00\xff", value=b"")
    group.dead(1, dead(1), key=None, value=None)
    group.send(group.topology.events, 0, b"k", b"an event")
    group.send(group.topology.dlq, 0, b"k", b"v", (("retry-attempt", b"x"), ("h", None), ("h", b"2")))
    group.send(group.topology.dlq, 0, b"k", b"v")
    group.send(group.topology.events, 1, b"k", b"no json")
    group.flush()
    group.begin(group.topology.dlq, [b"aborted"] * 3, 1).abort_transaction(20)
    job = group.archive(lake)
    result = job.run_once()
    assert (result.rows, result.gaps, len(result.new_lives)) == (6, (), 3)
    found = {(row["station"], row["partition"], row["offset"]): row for row in Tables(lake).read().collect()}
    retried = found["retry", 0, 0]
    assert (bytes(retried["key"]), bytes(retried["value"])) == (b"\x00\xff", b"")
    assert [(h["key"], bytes(h["value"])) for h in retried["headers"]] == list(encode_metadata(waiting(0)))
    died, strange = found["dlq", 1, 0], found["dlq", 0, 0]
    assert (died["key"], died["value"]) == (None, None)
    assert [(h["key"], h["value"]) for h in strange["headers"][1:]] == [("h", None), ("h", b"2")]
    again = job.run_once()
    assert (again.rows, again.gaps) == (0, ()), "the next run begins after the aborted records"
    group.dead(0, dead(2))
    result = job.run_once()
    assert (result.rows, result.cut[group.topology.dlq, 0]) == (1, 3)
    assert places_of(folder) == group.places()


def test_gaps_and_epochs(group: Group, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What retention took first is reported once; a topic made again is no continuation of the former one.

    Where it is made again while it is read, it is not known of which of the two the rows are.
    """
    job = group.archive(lake)
    group.dead(0, dead(0))
    assert job.run_once().rows == 1
    for number in range(1, 6):
        group.dead(0, dead(number))
    group.operator.delete_records(group.topology.dlq, 0, 4)
    result = job.run_once()
    assert gaps_of(result) == [(RETENTION, 0, 1, 4)]
    group.make_again(group.topology.dlq)
    for number in range(7):
        group.dead(0, dead(100 + number))  # more than before: by offsets alone the first ones would be passed over
    result = job.run_once()
    assert result.rows == 7
    assert gaps_of(result) == [(RECREATED, 0, 6, None), (RECREATED, 1, 0, None)]
    rows = Tables(lake).read().select("epoch", "offset").orderBy("epoch", "offset").collect()
    assert list(map(tuple, rows)) == [(1, 0), (1, 4), (1, 5), *((2, offset) for offset in range(7))]
    again = job.run_once()
    assert (again.rows, again.gaps) == (0, ())
    assert len(Gaps(lake).rows()) == 3

    def made_again(_: Tables) -> None:  # right after the commit of what was read of it
        group.make_again(group.topology.dlq)

    group.dead(0, dead(200))
    monkeypatch.setattr(Tables, "check_shared", made_again)
    with pytest.raises(TopicChangedError, match="Run again"):
        job.run_once()
    (doubt,) = [row for row in Gaps(lake).rows() if row["reason"] == IN_DOUBT]
    assert (doubt["partition"], doubt["from_offset"], doubt["to_offset"]) == (0, 7, 8)


@pytest.mark.extended
def test_small_files_are_joined_and_the_state_is_found_behind_that(
    group: Group, lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
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
    assert places_of(folder) == group.places()


@pytest.mark.extended
def test_a_restored_table_is_archived_again(spark: SparkSession, group: Group, lake: Lake, folder: Path) -> None:
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
    assert gaps_of(result) == [(RETENTION, 0, 3, 5)]
    assert result.rows == 4
    assert places_of(folder) == group.places() + Counter((dlq, 0, offset) for offset in range(3))
    rows = Tables(lake).read()  # overwritten, its log no longer says how far it reaches
    rows.where("offset < 4").write.format("delta").mode("overwrite").save(lake.table(RECORDS_TABLE))
    assert job.run_once().rows == 3
    assert places_of(folder).total() == 10


def test_a_table_that_is_gone_or_of_another_lake_is_refused(
    group: Group, lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one in its place would hide what is lost; and two clusters are not mixed."""
    job = group.archive(lake)
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
    shutil.move(folder / "records", folder.parent / "away")
    with pytest.raises(TableReplacedError, match=r"it is gone\. Put that table back; .*records\.json"):
        job.run_once()
    assert not (folder / "records").exists()
    (folder / "records.json").unlink()
    assert job.run_once().rows == 2


def test_what_is_behind_and_what_a_deleted_topic_takes_with_it(group: Group, lake: Lake) -> None:
    """What an open transaction holds back cannot be read yet, and is not archived either.

    A deleted topic is a gap, once, with what was not read of it; what is left of its handler is archived, though
    nothing names it any more.
    """
    job, topic = group.archive(lake), group.topology.dlq
    group.send_dead(2)
    job.run_once()
    producer = group.begin(topic, [b"open"], 0)
    group.send_dead(4)

    def seen() -> dict[str, TopicOutlook]:
        return {each.topic: each for each in find_outlook(lake, group.admin, group.topology.group)}

    try:
        assert (seen()[topic].behind, seen()[topic].undecided) == (5, 3)
    finally:
        producer.abort_transaction(20)
    Positions(group.connection).settled_ends([(topic, 0)])
    assert (seen()[topic].behind, seen()[topic].undecided) == (6, 0), "with the transaction's mark"
    group.retry(0, waiting(0), key=b"k", value=b"v")
    for name in (topic, group.topology.pending_changelog):
        group.operator.delete_topic(name)
    assert [topic for topic, outlook in seen().items() if outlook.at_risk(0)] == [group.topology.dlq]
    result = job.run_once()
    assert (result.rows, gaps_of(result)) == (1, [(DELETED, 0, 1, None), (DELETED, 1, 1, None)])
    assert job.run_once().gaps == ()
    group.make()
    again = job.run_once()
    assert (again.gaps, [life.epoch for life in again.new_lives]) == ((), [2])


def test_of_two_writers_one_is_refused(group: Group, lake: Lake, folder: Path) -> None:
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
    assert places_of(folder) == group.places()

"""The archive on real Kafka: each record once, with its bytes and what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from history import Group
from samples import dead, waiting

from retryapp.core.errors import TopicMissingError
from retryapp.core.headers import encode_metadata
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.archive import Archive, Archived, ArchiveOptions
from retryapp.pipeline.lake import Lake, open_lake
from retryapp.pipeline.positions import RECREATED, RETENTION
from retryapp.pipeline.tables import GAPS_TABLE, RECORDS_TABLE, RUNS_TABLE, TOPICS_TABLE, Tables

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

RunArchive = Callable[[], Archived]


pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def group(connection: KafkaConnection, topology: HandlerTopology) -> Group:
    """Topics with two partitions."""
    made = Group(connection, topology)
    made.make(partitions=2)
    return made


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return open_lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def run(spark: SparkSession, group: Group, lake: Lake) -> RunArchive:
    """Run the job over the group."""
    ticks = iter(range(1_000, 1_000_000, 1_000))
    options = ArchiveOptions(group=group.topology.group, rows_per_batch=7)
    return Archive(spark, group.connection, lake, options, now_ms=lambda: next(ticks)).run_once


@pytest.fixture
def rows(spark: SparkSession, lake: Lake) -> Callable[..., list[Row]]:
    """Read a table of the lake."""

    def read(table: str = RECORDS_TABLE, *order: str) -> list[Row]:
        return Tables(spark, lake).read(table).orderBy(*(order or ("topic", "partition"))).collect()

    return read


def test_bytes_and_metadata_of_all_stations(group: Group, run: RunArchive, rows: Callable[..., list[Any]]) -> None:
    """Key, value and headers as they were; null differs from empty; what cannot be read is said and kept."""
    group.retry(0, waiting(0), key=b"\x00\xff", value=b"")
    group.dead(1, dead(1), key=None, value=None)
    group.succeeded(0, 0)
    group.send(group.topology.dlq, 0, b"k", b"v", (("retry-attempt", b"x"), ("h", None), ("h", b"2")))
    group.send(group.topology.dlq, 0, b"k", b"v")
    group.send(group.topology.events, 1, b"k", b"no json")
    group.flush()
    result = run()
    assert (result.rows, result.gaps, len(result.new_lives)) == (6, (), 3)
    found = {(row["station"], row["partition"], row["offset"]): row for row in rows()}
    retried = found["retry", 0, 0]
    assert (bytes(retried["key"]), bytes(retried["value"])) == (b"\x00\xff", b"")
    assert [(h["key"], bytes(h["value"])) for h in retried["headers"]] == list(encode_metadata(waiting(0)))
    assert retried["failure_id"] == waiting(0).failure_id
    assert retried["metadata"]["origin"]["offset"] == 0
    died = found["dlq", 1, 0]
    assert (died["key"], died["value"], died["metadata"]["reason"]) == (None, None, "exhausted")
    assert found["events", 0, 0]["event"]["kind"] == "succeeded"
    strange = found["dlq", 0, 0]
    assert (strange["metadata"], strange["failure_id"]) == (None, None)
    assert "retry-version" in strange["unreadable"]
    assert [(h["key"], h["value"]) for h in strange["headers"][1:]] == [("h", None), ("h", b"2")]
    assert "no retry headers" in found["dlq", 0, 1]["unreadable"]
    assert "JSON" in found["events", 1, 0]["unreadable"]


def test_a_second_run_adds_what_is_new_and_a_third_nothing(
    group: Group, run: RunArchive, rows: Callable[..., list[Any]]
) -> None:
    """Also where a batch takes only some of the offsets; and each run is in the history, with its cut."""
    for number in range(20):
        group.send(group.topology.dlq, number % 2, b"k", b"v", encode_metadata(dead(number)))
    group.flush()
    first = run()
    assert (first.rows, first.batches > 1) == (20, True)
    group.dead(0, dead(20))
    assert [run().rows, run().rows] == [1, 0]
    assert sorted((row["partition"], row["offset"]) for row in rows()) == [
        *((0, offset) for offset in range(11)),
        *((1, offset) for offset in range(10)),
    ]
    history = rows(RUNS_TABLE, "at_ms")
    assert [row["state"] for row in history] == ["started", "finished"] * 2
    assert len({row["checkpoint"] for row in history}) == 1
    cut = {(part["topic"], part["partition"]): part["offset"] for part in history[-1]["cut"]}
    assert cut[group.topology.dlq, 0] == 11
    assert cut[group.topology.dlq, 1] == 10


def test_records_of_aborted_transactions_are_not_read(
    group: Group, run: RunArchive, rows: Callable[..., list[Any]]
) -> None:
    """Spark's connector reads them unless it is told not to; the next run begins behind them."""
    group.transact(group.topology.dlq, [b"aborted"] * 7, commit=False)
    group.transact(group.topology.dlq, [b"committed"] * 5, commit=True)
    group.transact(group.topology.dlq, [b"aborted"] * 3, commit=False)
    assert run().rows == 5
    assert {bytes(row["value"]) for row in rows()} == {b"committed"}
    again = run()
    assert (again.rows, again.gaps) == (0, ())


def test_a_lost_checkpoint_costs_nothing(
    spark: SparkSession, group: Group, lake: Lake, run: RunArchive, rows: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """The table itself says where to go on."""
    import shutil

    for number in range(5):
        group.dead(0, dead(number))
    assert run().rows == 5
    shutil.rmtree(tmp_path / "lake" / "checkpoints")
    group.dead(0, dead(5))
    assert run().rows == 1
    assert [row["offset"] for row in rows(RECORDS_TABLE, "offset")] == list(range(6))


def test_a_damaged_checkpoint_is_named_and_then_left_alone(
    group: Group, run: RunArchive, rows: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """Half a file, as a full disk leaves it; the rerun takes the table's offsets."""
    from retryapp.pipeline.errors import JobFailedError

    group.dead(0, dead(0))
    run()
    group.dead(0, dead(1))
    (notes,) = (tmp_path / "lake" / "checkpoints" / "archive" / "v1").iterdir()
    for file in (*(notes / "offsets").iterdir(), *(notes / "commits").iterdir()):
        file.write_text("v1\n{")
    with pytest.raises(JobFailedError, match="could not go on from its checkpoint"):
        run()
    assert run().rows == 1
    assert [row["offset"] for row in rows(RECORDS_TABLE, "offset")] == [0, 1]


def test_a_topic_made_again_opens_an_epoch(group: Group, run: RunArchive, rows: Callable[..., list[Any]]) -> None:
    """More records than before under the same name: by offsets alone the first ones would be passed over."""
    for number in range(3):
        group.dead(0, dead(number))
    assert run().rows == 3
    group.make_again(group.topology.dlq, partitions=2)
    for number in range(5):
        group.dead(0, dead(100 + number))
    result = run()
    assert result.rows == 5
    assert [(gap.reason, gap.partition, gap.from_offset, gap.to_offset) for gap in result.gaps] == [
        (RECREATED, 0, 3, None),
        (RECREATED, 1, 0, None),
    ]
    assert [(row["epoch"], row["offset"]) for row in rows(RECORDS_TABLE, "epoch", "offset")] == [
        *((1, offset) for offset in range(3)),
        *((2, offset) for offset in range(5)),
    ]
    assert len({row["topic_id"] for row in rows()}) == 2
    again = run()
    assert (again.rows, again.gaps) == (0, ())
    assert [row["epoch"] for row in rows(TOPICS_TABLE, "epoch") if row["topic"] == group.topology.dlq] == [1, 2]


def test_records_that_retention_took_first_are_a_gap(
    group: Group, run: RunArchive, rows: Callable[..., list[Any]]
) -> None:
    """The rest is archived, the loss is said once, with its offsets."""
    group.dead(0, dead(0))
    assert run().rows == 1
    for number in range(1, 6):
        group.dead(0, dead(number))
    group.delete_before(group.topology.dlq, 0, 4)
    result = run()
    assert [(gap.reason, gap.from_offset, gap.to_offset) for gap in result.gaps] == [(RETENTION, 1, 4)]
    assert [row["offset"] for row in rows(RECORDS_TABLE, "offset")] == [0, 4, 5]
    assert [(row["from_offset"], row["to_offset"]) for row in rows(GAPS_TABLE)] == [(1, 4)]
    again = run()
    assert (again.rows, again.gaps) == (0, ())


def test_a_group_without_topics(spark: SparkSession, connection: KafkaConnection, lake: Lake) -> None:
    """Named with what to correct."""
    job = Archive(spark, connection, lake, ArchiveOptions(group="nobody"), now_ms=lambda: 0)
    with pytest.raises(TopicMissingError, match="--group"):
        job.run_once()

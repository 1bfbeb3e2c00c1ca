"""The archive on real Kafka: each record once, with its bytes and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from history import Group
from samples import dead, waiting

from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.archive import Archive, ArchiveOptions
from retryapp.pipeline.lake import open_lake
from retryapp.pipeline.tables import RECORDS_TABLE, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_everything_is_there_once_and_a_second_run_adds_what_is_new(
    spark: SparkSession, connection: KafkaConnection, topology: HandlerTopology, tmp_path: Path
) -> None:
    """Two runs over all three stations."""
    group = Group(connection, topology)
    group.make(partitions=2)
    group.retry(0, waiting(0), key=b"k", value=b"\x00\xff")
    group.dead(1, dead(1), key=None, value=None)
    group.succeeded(0, 0)
    lake = open_lake(spark, str(tmp_path / "lake"))
    archive = Archive(spark, connection, lake, ArchiveOptions(group=topology.group), now_ms=lambda: 1_000)
    first = archive.run_once()
    assert (first.rows, first.gaps) == (3, ())
    group.retry(0, waiting(2))
    assert archive.run_once().rows == 1
    assert archive.run_once().rows == 0
    rows = {row["station"]: row for row in Tables(spark, lake).read(RECORDS_TABLE).orderBy("offset").collect()}
    assert Tables(spark, lake).read(RECORDS_TABLE).count() == 4
    assert rows["dlq"]["metadata"]["reason"] == "exhausted"
    assert rows["events"]["event"]["kind"] == "succeeded"

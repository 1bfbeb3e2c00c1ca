"""Lakes that earlier versions wrote: their tables get the columns that they lack, and nothing is archived again."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta import places_of
from history import Group
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

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
    job, tables = group.archive(spark, lake), Tables(spark, lake)
    assert job.run_once().rows == 1
    assert tables.is_current()
    properties = {tuple(row) for row in spark.sql(f"SHOW TBLPROPERTIES {quoted(place)}").collect()}
    assert ("delta.logRetentionDuration", "interval 7 days") in properties
    assert places_of(tmp_path / "lake") == group.places()
    first, second = tables.read().orderBy("offset").select("run_id", "failure_id").collect()
    assert tuple(first) == (None, "g/t@i/0/0"), "what it had parsed stays, and nothing reads it"
    assert tuple(second) == (read_state(tables).run_id, None)
    said = [row["said"]["failure_id"] for row in readings_of(tables.read()).orderBy("found_offset").collect()]
    assert said == [dead(0).failure_id, dead(1).failure_id]
    assert job.run_once().rows == 0

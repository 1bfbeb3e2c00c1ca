"""Lakes that earlier versions wrote: their tables get the columns of today, and nothing is archived again."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta import places_of
from history import Group
from samples import dead

from retryapp.pipeline.lake import Lake
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

OLDER = """
    cluster_id string, topic_id string, epoch int, topic string, partition int, offset bigint, timestamp_ms bigint,
    date date, key binary, value binary, headers array<struct<key: string, value: binary>>, key_hash string,
    group string, main string, station string, failure_id string,
    metadata struct<version: bigint, group: string, handler: string,
        origin: struct<topic: string, topic_id: string, partition: bigint, offset: bigint>,
        origin_timestamp_ms: bigint, attempt: bigint, due_at_ms: bigint, started_ms: bigint, policy: string,
        tier: string, first_failed_ms: bigint, last_failed_ms: bigint, error_type: string, error_message: string,
        error_trace: string, reason: string, fingerprint: string,
        history: array<struct<attempt: bigint, failed_ms: bigint>>, replay_id: string, replays: bigint,
        null_value: boolean>,
    event struct<kind: string, v: bigint, group: string, handler: string, failure_id: string, origin: string,
        replays: bigint, attempt: bigint, started_ms: bigint, ended_ms: bigint, lateness_ms: bigint, main: string,
        text: string, digest: string, at_ms: bigint, partition: bigint, from_offset: bigint, to_offset: bigint,
        from_ms: bigint, to_ms: bigint, received: bigint, first_try_ok: bigint, failed: bigint>,
    unreadable string
"""
"""As of a version without ``run_id``, ``metadata.delivery``, ``metadata.original_reason``,
``metadata.history.error_type``, ``event.skipped``: a column of each depth."""


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
        "group": group.topology.group, "main": group.topology.main, "station": "dlq", "headers": [],
    }  # fmt: skip
    schema = spark.read.format("delta").load(place).schema
    row = tuple(known.get(name) for name in schema.fieldNames())
    spark.createDataFrame([row], schema).write.format("delta").mode("append").save(place)
    job, tables = group.archive(spark, lake), Tables(spark, lake)
    assert job.run_once().rows == 1
    assert tables.missing_columns() == []
    assert places_of(tmp_path / "lake") == group.places()
    later = ("metadata.delivery", "metadata.original_reason", "metadata.history.error_type", "event.skipped")
    columns = ("run_id", *later)
    first, second = tables.read(RECORDS_TABLE).orderBy("offset").select(*columns).collect()
    assert tuple(first) == (None,) * len(columns)
    assert (second["run_id"], second["delivery"]) == (read_state(tables).run_id, dead(1).delivery)
    assert job.run_once().rows == 0

"""Reads Kafka from Spark, committed records only, as rows of the archive; secrets are hidden."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from retryapp.kafka import KafkaConnection
from retryapp.pipeline.positions import Offsets
from retryapp.pipeline.schemas import RECORDS
from retryapp.pipeline.security import source_options


def offsets_json(positions: Offsets) -> str:
    """Return offsets as Spark takes them.

    >>> offsets_json({("orders", 0): 7})
    '{"orders": {"0": 7}}'
    """
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def read_range(spark: SparkSession, connection: KafkaConnection, begin: Offsets, end: Offsets) -> DataFrame:
    """Return the records from ``begin`` to before ``end``; both have the same partitions.

    Returns:
        key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,
        headers array<struct<key: string, value: binary>>.
    """
    partitions: dict[str, list[int]] = {}
    for topic, partition in begin:
        partitions.setdefault(topic, []).append(partition)
    options = {
        **source_options(connection),
        "kafka.bootstrap.servers": connection.bootstrap,
        "kafka.isolation.level": "read_committed",  # the default reads records of aborted transactions too
        "includeHeaders": "true",
        "assign": json.dumps(partitions),
        "startingOffsets": offsets_json(begin),
        "endingOffsets": offsets_json(end),
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**options).load()


def key_hash(key: Column, salt: str) -> Column:
    """Return the salted SHA-256 of a binary column, in hex; null for null."""
    return F.sha2(F.concat(F.unhex(F.lit(salt)), key), 256)


def archive_rows(records: DataFrame, topics: DataFrame, *, salt: str, run_id: str) -> DataFrame:
    """Return records as rows of the archive."""
    made = {
        "timestamp_ms": F.unix_millis("timestamp"),
        "date": F.date_from_unix_date(F.expr("int(floor(unix_millis(timestamp) / 86400000))")),  # in no zone but UTC
        "key_hash": key_hash(F.col("key"), salt),
        "run_id": F.lit(run_id),
    }
    known = records.join(F.broadcast(topics), on="topic", how="inner").withColumns(made)
    return known.select(*(F.col(field.name).alias(field.name, metadata=field.metadata) for field in RECORDS))

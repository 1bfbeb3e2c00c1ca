"""Reading Kafka from Spark: committed records only, with all that the connection says, secrets hidden."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from retryapp.kafka import KafkaConnection
from retryapp.pipeline.security import java_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
"""The connector's default reads records of aborted transactions too."""

Positions = Mapping[tuple[str, int], int]  # topic and partition → offset


def kafka_options(connection: KafkaConnection) -> dict[str, str]:
    """Return what every read of a cluster sets."""
    options = {f"kafka.{name}": value for name, value in java_options(connection).items()}
    return {**options, "kafka.bootstrap.servers": connection.bootstrap, "includeHeaders": "true", **READ_COMMITTED}


def offsets_json(positions: Positions) -> str:
    """Return offsets as Spark takes them.

    >>> offsets_json({("orders", 0): 7})
    '{"orders": {"0": 7}}'
    """
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def read_range(spark: SparkSession, connection: KafkaConnection, begin: Positions, end: Positions) -> DataFrame:
    """Return the records from ``begin`` to before ``end``; both have the same partitions.

    Returns:
        key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,
        headers array<struct<key: string, value: binary>>.
    """
    partitions: dict[str, list[int]] = {}
    for topic, partition in begin:
        partitions.setdefault(topic, []).append(partition)
    return (
        spark.read.format("kafka")
        .options(**kafka_options(connection))
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", offsets_json(begin))
        .option("endingOffsets", offsets_json(end))
        .option("failOnDataLoss", "true")
        .load()
    )

"""The tables of the archive, column by column. Nothing in it is parsed: the analysis does that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

SCHEMA_VERSION: Final = 1  # version of the tables that is written; older ones (none yet) are read


def struct(text: str) -> T.StructType:
    """Return a struct of ``name type`` pairs with commas between."""
    made = T.StructType()
    for pair in text.split(", "):
        name, kind = pair.split()
        made.add(name, kind)
    return made


def table(text: str, **nested: T.DataType) -> T.StructType:
    """Return a table's schema: one column a line, ``name type comment``; ``nested`` are types by name."""
    schema = T.StructType()
    for line in text.strip().splitlines():
        name, kind, comment = line.split(maxsplit=2)
        schema.add(name, nested.get(kind, kind), metadata={"comment": comment})
    return schema


def to_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: T.StructType) -> DataFrame:
    """Return rows as a table; from Arrow they are part of the plan, and no job of Python's."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    return spark.createDataFrame(pa.table(list(map(list, columns)), schema=to_arrow_schema(schema)))


HEADERS: Final = T.ArrayType(struct("key string, value binary"))

RECORDS: Final = table(
    """
    cluster_id string Kafka's cluster id
    topic_id string first 8 characters of the topic id, as in retry-origin
    epoch integer 1 for the first life of the topic's name, one more for each re-creation
    topic string name of the topic
    partition integer partition number
    offset long order within topic_id and partition; has gaps, so nothing is counted by it
    timestamp_ms long the broker's time of arrival, epoch milliseconds
    date date its day in UTC
    key binary key bytes; null differs from empty
    value binary value bytes; null differs from empty
    headers HEADERS all headers in their order, ours included
    key_hash string salted SHA-256 of the key, in hex; by it a key is erased
    group string consumer group
    main string main topic of the handler
    station string retry, dlq or events
    run_id string the run that wrote the row
    """,
    HEADERS=HEADERS,
)

"""The lake's tables: made, appended to and read; Delta, or Parquet where Delta's jars are not there.

Delta tables keep statistics of numbers only: text in the statistics of a log would outlive the erasure of its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from retryapp.pipeline.errors import NewerLakeError
from retryapp.pipeline.lake import Files, Lake
from retryapp.pipeline.schemas import GAPS, RECORDS, RUNS, SCHEMA_VERSION, TOPICS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as T

RECORDS_TABLE: Final = "records"
TOPICS_TABLE: Final = "topics"
GAPS_TABLE: Final = "gaps"
RUNS_TABLE: Final = "runs"

VERSION_PROPERTY: Final = "retryapp.schema"

TABLES: Final[Mapping[str, T.StructType]] = {
    RECORDS_TABLE: RECORDS,
    TOPICS_TABLE: TOPICS,
    GAPS_TABLE: GAPS,
    RUNS_TABLE: RUNS,
}
_PARTITIONED: Final = {RECORDS_TABLE: "date"}
_NUMBERS: Final = {
    RECORDS_TABLE: "epoch,partition,offset,timestamp_ms",
    TOPICS_TABLE: "epoch,first_seen_ms",
    GAPS_TABLE: "partition,from_offset,to_offset,found_ms",
    RUNS_TABLE: "at_ms",
}
_COMMENTS: Final = {
    RECORDS_TABLE: "Every record of the retry, dead-letter and events topics, once",
    TOPICS_TABLE: "Every life of every archived topic",
    GAPS_TABLE: "Offsets that were lost before they were archived",
    RUNS_TABLE: "What each run of a pipeline job did",
}


class Tables:
    """The tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        """Args: spark: the session. lake: where."""
        self.spark = spark
        self.lake = lake

    def ensure(self, name: str) -> None:
        """Make a table where there is none, and refuse one of a newer version.

        Raises:
            NewerLakeError: it was written by a newer retryapp.
        """
        if self.lake.format != "delta":
            return
        place = self.lake.table(name)
        if not self.exists(name):
            self.spark.sql(_create(name, place))
            return
        found = self.properties(name).get(VERSION_PROPERTY, str(SCHEMA_VERSION))
        if int(found) > SCHEMA_VERSION:
            raise NewerLakeError(f"the table {place}", int(found), SCHEMA_VERSION)

    def properties(self, name: str) -> dict[str, str]:
        """Return a Delta table's properties."""
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {quoted(self.lake.table(name))}").collect()
        return {row["key"]: row["value"] for row in rows}

    def exists(self, name: str) -> bool:
        """Tell whether a table is there."""
        mark = "_delta_log" if self.lake.format == "delta" else ""
        return Files(self.spark, self.lake.uri).exists(f"{self.lake.table(name)}/{mark}".rstrip("/"))

    def read(self, name: str) -> DataFrame:
        """Return a table; empty where it is not there yet."""
        schema = TABLES[name]
        if not self.exists(name):
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.format(self.lake.format)
        if self.lake.format != "delta":
            reader = reader.schema(schema)
        return reader.load(self.lake.table(name)).select(*schema.fieldNames())

    def append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append a few rows, in one commit."""
        if not rows:
            return
        self.ensure(name)
        schema = TABLES[name]
        values = [tuple(row.get(column) for column in schema.fieldNames()) for row in rows]
        frame = self.spark.createDataFrame(values, schema).coalesce(1)
        frame.write.format(self.lake.format).mode("append").save(self.lake.table(name))


def quoted(place: str) -> str:
    """Return a Delta table's place as SQL names it."""
    escaped = place.replace("`", "``")
    return f"delta.`{escaped}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _create(name: str, place: str) -> str:
    columns = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()} COMMENT {_literal(field.metadata['comment'])}"
        for field in TABLES[name]
    )
    partitioned = f" PARTITIONED BY ({_PARTITIONED[name]})" if name in _PARTITIONED else ""
    properties = {
        VERSION_PROPERTY: str(SCHEMA_VERSION),
        "delta.dataSkippingStatsColumns": _NUMBERS[name],
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "false",
    }
    listed = ", ".join(f"{_literal(key)} = {_literal(value)}" for key, value in properties.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(place)} ({columns}) USING delta{partitioned} "
        f"COMMENT {_literal(_COMMENTS[name])} TBLPROPERTIES ({listed})"
    )

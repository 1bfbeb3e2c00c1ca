"""The lake's tables: ``records`` in Delta, small facts in JSON.

The Delta table keeps statistics of numbers only: text in the statistics of a log would outlive the erasure of its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from retryapp.pipeline.lake import Files, Lake
from retryapp.pipeline.schemas import ERASURES, GAPS, RECORDS, SCHEMA_VERSION

RECORDS_TABLE: Final = "records"
TOPICS_TABLE: Final = "topics"
GAPS_TABLE: Final = "gaps"
RUNS_TABLE: Final = "runs"
ERASURES_TABLE: Final = "erasures"
DERIVED: Final = "derived"  # folder of everything that is made of `records` and can be made again

VERSION_PROPERTY: Final = "retryapp.schema"

_SCHEMAS: Final[Mapping[str, T.StructType]] = {RECORDS_TABLE: RECORDS, GAPS_TABLE: GAPS, ERASURES_TABLE: ERASURES}
_NUMBERS: Final = "epoch,partition,offset,timestamp_ms"
_COMMENT: Final = "Every record of the retry, dead-letter and events topics, once"


class Tables:
    """The tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake
        self.files = Files(spark, lake.uri)

    def ensure_records(self) -> None:
        """Make the archive's table where there is none."""
        if not self.exists(RECORDS_TABLE):
            self.spark.sql(_create_records(self.lake.table(RECORDS_TABLE)))

    def exists(self, name: str) -> bool:
        """Tell whether a table exists."""
        return self.files.exists(self.lake.table(name) + ("/_delta_log" if name == RECORDS_TABLE else ""))

    def read(self, name: str) -> DataFrame:
        """Return ``records``, ``gaps`` or ``erasures``; empty where the table does not exist yet."""
        schema, place = _SCHEMAS[name], self.lake.table(name)
        if not self.exists(name):
            return self.spark.createDataFrame([], schema)
        if name == RECORDS_TABLE:
            return self.spark.read.format("delta").load(place).select(*schema.fieldNames())
        return self.spark.read.format("json").schema(schema).load(place)


def quoted(place: str) -> str:
    """Return a Delta table's place as SQL names it."""
    escaped = place.replace("`", "``")
    return f"delta.`{escaped}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _create_records(place: str) -> str:
    columns = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()} COMMENT {_literal(field.metadata['comment'])}"
        for field in RECORDS
    )
    properties = {
        VERSION_PROPERTY: str(SCHEMA_VERSION),
        "delta.dataSkippingStatsColumns": _NUMBERS,
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "false",  # what is deleted has to leave its file
    }
    listed = ", ".join(f"{_literal(key)} = {_literal(value)}" for key, value in properties.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(place)} ({columns}) USING delta PARTITIONED BY (date) "
        f"COMMENT {_literal(_COMMENT)} TBLPROPERTIES ({listed})"
    )

"""The lake's tables: ``records`` in Delta, small facts in JSON.

The Delta table keeps statistics of numbers only: text in the statistics of a log would outlive the erasure of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from retryapp.pipeline.errors import TableReplacedError
from retryapp.pipeline.lake import Files, Lake
from retryapp.pipeline.schemas import ERASURES, RECORDS, SCHEMA_VERSION

RECORDS_TABLE: Final = "records"
ERASURES_TABLE: Final = "erasures"
DERIVED: Final = "derived"  # folder of everything that is made of `records` and can be made again

VERSION_PROPERTY: Final = "retryapp.schema"

_SCHEMAS: Final[Mapping[str, T.StructType]] = {RECORDS_TABLE: RECORDS, ERASURES_TABLE: ERASURES}
_NUMBERS: Final = "epoch,partition,offset,timestamp_ms"
_COMMENT: Final = "Every record of the retry, dead-letter and events topics, once"


class Tables:
    """The tables of one lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake
        self.files = Files(spark, lake.uri)

    def ensure_records(self) -> None:
        """Make the archive's table where there is none; add the columns that a former version did not have."""
        if not self.exists(RECORDS_TABLE):
            self.check_never_made()
            self.spark.sql(_create_records(self.lake.table(RECORDS_TABLE)))
        elif missing := self.missing_columns():
            columns = ", ".join(f"{path} {kind.simpleString()}" for path, kind in missing)
            self.spark.sql(f"ALTER TABLE {quoted(self.lake.table(RECORDS_TABLE))} ADD COLUMNS ({columns})")
        self.files.create(self.lake.made_mark, "{}")

    def check_never_made(self) -> None:
        """Raise if the table of records was there once: an empty one in its place would hide what was lost."""
        if self.files.exists(self.lake.made_mark):
            raise TableReplacedError(self.lake.table(RECORDS_TABLE), "it is gone", self.lake.made_mark)

    def missing_columns(self) -> list[tuple[str, T.DataType]]:
        """Return path and type of the columns that the table of records lacks, as an earlier version made it."""
        place = self.lake.table(RECORDS_TABLE)
        return list(_missing(RECORDS, self.spark.read.format("delta").load(place).schema, ""))

    def history(self, limit: int) -> list[Row]:
        """Return the last commits to the table of records, the newest first."""
        place = quoted(self.lake.table(RECORDS_TABLE))
        return self.spark.sql(f"DESCRIBE HISTORY {place} LIMIT {limit}").collect()

    def exists(self, name: str) -> bool:
        """Tell whether a table exists."""
        return self.files.exists(self.lake.table(name) + ("/_delta_log" if name == RECORDS_TABLE else ""))

    def read(self, name: str) -> DataFrame:
        """Return ``records`` or ``erasures``; empty where the table does not exist yet."""
        schema, place = _SCHEMAS[name], self.lake.table(name)
        if not self.exists(name):
            return self.spark.createDataFrame([], schema)
        if name == RECORDS_TABLE:
            return self.spark.read.format("delta").load(place)  # of an earlier version, it may lack columns
        return self.spark.read.format("json").schema(schema).load(place)


def _missing(wanted: T.DataType, found: T.DataType, path: str) -> Iterator[tuple[str, T.DataType]]:
    if isinstance(wanted, T.ArrayType) and isinstance(found, T.ArrayType):
        yield from _missing(wanted.elementType, found.elementType, f"{path}.element")
    if isinstance(wanted, T.StructType) and isinstance(found, T.StructType):
        for field in wanted:
            place = f"{path}.`{field.name}`".lstrip(".")
            if field.name in found.fieldNames():
                yield from _missing(field.dataType, found[field.name].dataType, place)
            else:
                yield place, field.dataType


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
        "delta.enableDeletionVectors": "false",  # what is deleted has to leave its file
    }
    listed = ", ".join(f"{_literal(key)} = {_literal(value)}" for key, value in properties.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(place)} ({columns}) USING delta PARTITIONED BY (date) "
        f"COMMENT {_literal(_COMMENT)} TBLPROPERTIES ({listed})"
    )

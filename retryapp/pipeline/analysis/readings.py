"""``readings``: what each archived record says. Each record is parsed once, unless the archive or the decoder changed.

How far the archive was read is in the metadata of the commit that has the rows, so it cannot differ from them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from retryapp.core.headers import RETRY_MARK
from retryapp.pipeline.analysis.reading import DLQ, EVENTS, read_columns
from retryapp.pipeline.analysis.schemas import ANALYSIS_VERSION, READINGS, READINGS_TABLE
from retryapp.pipeline.errors import TableMissingError
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.schemas import HEADERS
from retryapp.pipeline.tables import DERIVED, RECORDS_TABLE, Log, Tables

APPENDS: Final = frozenset(
    {"STREAMING UPDATE", "WRITE Append", "OPTIMIZE", "VACUUM START", "VACUUM END", "CREATE TABLE", "SET TBLPROPERTIES",
     "ADD COLUMNS"}
)  # fmt: skip
"""Operations on the archive's table after which what was read of it still holds."""
_KEEPING: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"})
"""Operations on this table that leave its rows as they are; their metadata, if any, is not of an update."""
_WHOLE: Final = {
    "overwriteSchema": "true",
    "delta.dataSkippingNumIndexedCols": "0",  # files are read as a whole
}


@dataclass(frozen=True, slots=True)
class Read:
    """What an update has read."""

    records: int
    full: bool  # the whole archive


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the archive was read."""

    version: int  # of the archive's table
    places: frozenset[tuple[str, int, int]]  # topic id and partition: all before this offset was read


class Readings:
    """The table in one lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._tables = Tables(spark, lake)
        self._place = lake.table(f"{DERIVED}/{READINGS_TABLE}")

    def read(self) -> DataFrame:
        """Return the table."""
        return self._spark.read.format("delta").load(self._place)

    def archive_version(self) -> int:
        """Return the present version of the archive's table."""
        if not self._tables.exists():
            raise TableMissingError(self._tables.lake.uri)
        return int(next(self._tables.commits())["version"])

    def update(self, *, full: bool) -> Read:
        """Read what is new."""
        version = self.archive_version()
        reached = None if full else self._reached(version)
        if reached is not None and reached.version == version:
            return Read(0, full=False)
        records = self._records(version)
        if reached is not None:
            places = self._spark.createDataFrame(sorted(reached.places), "topic_id string, partition int, next bigint")
            known = records.join(F.broadcast(places), on=["topic_id", "partition"], how="left")
            records = known.where(F.col("next").isNull() | (F.col("offset") >= F.col("next"))).drop("next")
        # of few columns, to know the days that have to be read as a whole
        found = records.groupBy("topic_id", "partition").agg(
            F.max("offset").alias("last"), F.min("date").alias("day"), F.count(F.lit(1)).alias("records")
        )
        news = found.collect()
        before = {} if reached is None else {place[:2]: place[2] for place in reached.places}
        after = before | {(row["topic_id"], row["partition"]): row["last"] + 1 for row in news}
        if news:
            records = records.where(F.col("date") >= F.lit(min(row["day"] for row in news)))
        metadata = {
            "readings": ANALYSIS_VERSION, "lake": self._tables.lake.id, "version": version,
            "places": [[*place, offset] for place, offset in sorted(after.items())],
        }  # fmt: skip
        if news or reached is None:
            writer = readings_of(records).write.format("delta").partitionBy("group")
            writer = writer.mode("append") if reached else writer.mode("overwrite").options(**_WHOLE)
            writer.option("userMetadata", json.dumps(metadata)).save(self._place)
        return Read(sum(row["records"] for row in news), full=reached is None)

    def _records(self, version: int) -> DataFrame:
        place = self._tables.lake.table(RECORDS_TABLE)
        return self._spark.read.format("delta").option("versionAsOf", version).load(place)

    def _reached(self, version: int) -> Reached | None:
        """Return how far the archive was read; None: it must be read again."""
        facts = self._metadata()
        if facts.get("readings") != ANALYSIS_VERSION or facts.get("lake") != self._tables.lake.id:
            return None
        former = facts["version"]
        since = itertools.takewhile(lambda commit: commit["version"] > former, self._tables.commits())
        done = {commit["version"]: _operation(commit) for commit in since if commit["version"] <= version}
        if former > version or len(done) != version - former or not APPENDS.issuperset(done.values()):
            return None
        return Reached(former, frozenset(tuple(place) for place in facts["places"]))

    def _metadata(self) -> dict[str, Any]:
        """Return what the last commit that changed the rows says of them; nothing where that was not an update."""
        log = Log(self._tables.files, self._place)
        commits = log.commits() if log.exists() else iter(())
        last = next((commit for commit in commits if commit.get("operation") not in _KEEPING), {})
        return dict(json.loads(last.get("userMetadata") or "{}")) if last.get("operation") == "WRITE" else {}


def readings_of(records: DataFrame) -> DataFrame:
    """Return what rows of the archive say."""
    is_event = F.col("station") == F.lit(EVENTS)
    is_mark = (F.col("station") == F.lit(DLQ)) & F.exists("headers", lambda header: header["key"] == F.lit(RETRY_MARK))
    none = F.array().cast(HEADERS)  # not null: for each row Arrow's writer goes over all nulls before it anew
    columns: dict[str, Any] = {
        "life": F.col("topic_id"),
        "found_partition": F.col("partition"),
        "found_offset": F.col("offset"),
        "key_hash": F.when(~is_event, F.col("key_hash")),  # an event's key is the failure id
        "said": read_columns(
            F.col("station"),
            F.when(is_event, none).otherwise(F.col("headers")),
            F.when(is_event | is_mark, F.col("value")),
        ),
    }
    return records.select(*(columns.get(name, F.col(name)).alias(name) for name in READINGS.fieldNames()))


def _operation(commit: Mapping[str, Any]) -> str:
    mode = commit.get("operationParameters", {}).get("mode")
    operation = str(commit.get("operation"))
    return f"WRITE {mode}" if operation == "WRITE" else operation

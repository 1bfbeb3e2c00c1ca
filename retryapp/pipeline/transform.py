"""From Kafka's columns to the lake's: DataFrame to DataFrame, nothing else."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.reading import EVENTS, read_columns
from retryapp.pipeline.schemas import HEADERS, READING, RECORDS
from retryapp.pipeline.wellformed import NATIVE, with_native

DAY_MS: Final = 86_400_000


def key_hash(key: Column, salt: str) -> Column:
    """Return the salted SHA-256 of a binary column, in hex; null for null."""
    return F.sha2(F.concat(F.unhex(F.lit(salt)), key), 256)


def utc_day(epoch_ms: Column) -> Column:
    """Return the day in UTC of an instant in epoch milliseconds, whatever the session's time zone."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(epoch_ms / F.lit(DAY_MS)).cast("int"))


def archive_rows(
    records: DataFrame, topics: DataFrame, *, salt: str, run_id: str, erased: DataFrame | None = None
) -> DataFrame:
    """Return records as rows of the archive."""
    arrived = F.unix_millis("timestamp")
    known = (
        records.join(F.broadcast(topics), on="topic", how="inner")
        .withColumn("timestamp_ms", arrived)
        .withColumn("date", utc_day(arrived))
        .withColumn("key_hash", key_hash(F.col("key"), salt))
    )
    if erased is not None:
        gone = known["key_hash"].eqNullSafe(erased["key_hash"]) & (known["timestamp_ms"] <= erased["erased_ms"])
        known = known.join(F.broadcast(erased), on=gone, how="left_anti")
    return _read(known.withColumn("run_id", F.lit(run_id)))


def reread_rows(rows: DataFrame) -> DataFrame:
    """Return rows of the archive with what their bytes say to the decoders of today."""
    return _read(rows.drop(*READING.fieldNames()))


def _read(rows: DataFrame) -> DataFrame:
    """Add what ``station``, ``headers`` and ``value`` say; core's decoders read what is not surely well-formed."""
    is_event = F.col("station") == F.lit(EVENTS)
    known = with_native(rows, is_event=is_event)
    left = F.col(NATIVE).isNull()
    none = F.array().cast(HEADERS)  # not null: for each row Arrow's writer goes over all nulls before it anew
    reading = read_columns(
        F.when(left, F.col("station")),
        F.when(left & ~is_event, F.col("headers")).otherwise(none),
        F.when(left & is_event, F.col("value")),
    )
    both = known.withColumn("reading", F.coalesce(NATIVE, reading)).select("*", "reading.*")
    return both.select(*RECORDS.fieldNames())

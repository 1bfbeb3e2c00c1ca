"""From Kafka's columns to the archive's: DataFrame to DataFrame, nothing else."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.schemas import RECORDS

DAY_MS: Final = 86_400_000


def key_hash(key: Column, salt: str) -> Column:
    """Return the salted SHA-256 of a binary column, in hex; null for null."""
    return F.sha2(F.concat(F.unhex(F.lit(salt)), key), 256)


def utc_day(epoch_ms: Column) -> Column:
    """Return the day in UTC of an instant in epoch milliseconds, whatever the session's time zone."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(epoch_ms / F.lit(DAY_MS)).cast("int"))


def archive_rows(records: DataFrame, topics: DataFrame, *, salt: str, run_id: str) -> DataFrame:
    """Return records as rows of the archive."""
    arrived = F.unix_millis("timestamp")
    known = (
        records.join(F.broadcast(topics), on="topic", how="inner")
        .withColumn("timestamp_ms", arrived)
        .withColumn("date", utc_day(arrived))
        .withColumn("key_hash", key_hash(F.col("key"), salt))
    )
    return known.withColumn("run_id", F.lit(run_id)).select(*RECORDS.fieldNames())

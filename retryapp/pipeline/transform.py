"""From Kafka's columns to the lake's: DataFrame to DataFrame, nothing else."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.reading import EVENTS, read_columns
from retryapp.pipeline.schemas import RECORDS

DAY_MS: Final = 86_400_000


def key_hash(key: Column, salt: str) -> Column:
    """Return the salted SHA-256 of a binary column, in hex; null for null."""
    return F.sha2(F.concat(F.unhex(F.lit(salt)), key), 256)


def utc_day(epoch_ms: Column) -> Column:
    """Return the day in UTC of an instant in epoch milliseconds, whatever the session's time zone."""
    return F.date_add(F.lit("1970-01-01").cast("date"), F.floor(epoch_ms / F.lit(DAY_MS)).cast("int"))


def archive_rows(records: DataFrame, topics: DataFrame, *, salt: str, run_id: str) -> DataFrame:
    """Return records as rows of the archive.

    Args:
        records: as :func:`retryapp.pipeline.read.read_stream` returns them.
        topics: cluster_id, topic_id, epoch, topic, group, main, station: one row for each topic that is read.
        salt: hex.
        run_id: name of the run.

    Returns:
        The columns of ``schemas.RECORDS``, one row for each record.
    """
    is_event = F.col("station") == F.lit(EVENTS)
    known = records.join(F.broadcast(topics), on="topic", how="inner")
    read = known.withColumn(
        "reading",
        read_columns(F.col("station"), F.when(~is_event, F.col("headers")), F.when(is_event, F.col("value"))),
    )
    full = read.select(
        "*",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        utc_day(F.unix_millis("timestamp")).alias("date"),
        key_hash(F.col("key"), salt).alias("key_hash"),
        F.col("reading.failure_id").alias("failure_id"),
        F.col("reading.metadata").alias("metadata"),
        F.col("reading.event").alias("event"),
        F.col("reading.unreadable").alias("unreadable"),
        F.lit(run_id).alias("run_id"),
    )
    return full.select(*RECORDS.fieldNames())

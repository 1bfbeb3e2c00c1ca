"""`python -m benchmarks.journeys`: how long the analysis takes over an archive of millions of records.

Steps: a lake whose archive Spark itself writes, without Kafka, with the columns that an analysis reads; the table
of journeys alone; the whole analysis with every table and check, as ``retryapp pipeline analyse --full`` makes them.

Of 20 records that fail, 12 succeed at the second attempt, 5 at the third, 2 die at the fifth and 1 waits: 2.5 records
in the archive for each. One in ten of the main topic fails. Workers' counts cover all of it, so that every check holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as F

from benchmarks.archive import processor_s, show, spark_session
from retryapp.stage import Run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as T

    from retryapp.pipeline.analysis.cuts import TakenCut

WANTED_S = 60.0
GROUP, MAIN, TOPIC_ID, CLUSTER = "bench", "orders", "kq8G0bTz", "bench-cluster"
HANDLER = "shop.billing.charge"
PARTITIONS = 8
ONE_FAILS_OF = 10
RECORDS_OF_20 = 50
RANGES = 50
"""Progress events of each partition."""
NOON_MS = 1_900_000_000_000


def rows_of(spark: SparkSession, failures: int) -> DataFrame:
    """Return the columns of the archive's ``records`` for so many records that failed."""
    from retryapp.pipeline.schemas import EVENT, METADATA

    lives = _lives(spark, failures)
    kind = "case when step < steps or number % 20 = 19 then 'retry' when number % 20 < 17 then 'events' else 'dlq' end"
    steps = (
        lives.select("*", F.explode(F.sequence(F.lit(1), "steps")).alias("step"))
        .withColumn("station", F.expr(kind))
        .withColumn("started_ms", F.expr("began_ms + (step - 1) * 60010"))
        .withColumn("origin", F.expr(f"concat('{MAIN}@{TOPIC_ID}/', partition, '/', origin_offset)"))
        .withColumn("failure_id", F.concat(F.lit(f"{GROUP}/"), "origin"))
    )
    cause = F.expr("number div 5000 % 40")
    metadata = {
        "version": F.lit(1), "group": F.lit(GROUP), "handler": F.lit(HANDLER),
        "origin": F.struct(
            F.lit(MAIN).alias("topic"), F.lit(TOPIC_ID).alias("topic_id"), F.col("partition").cast("long"),
            F.col("origin_offset").alias("offset"),
        ),
        "origin_timestamp_ms": F.col("began_ms"), "attempt": F.col("step"),
        "due_at_ms": F.expr("if(station = 'retry', started_ms + 60000, null)"), "started_ms": F.col("started_ms"),
        "policy": F.lit("5f1c2d3e"), "tier": F.expr("if(station = 'retry', '1m', null)"),
        "first_failed_ms": F.col("began_ms"), "last_failed_ms": F.col("started_ms") + 250,
        "error_type": F.concat(F.lit("shop.errors.Error"), cause),
        "error_message": F.expr("concat('10.0.0.', number % 250, ':443 refused after ', number % 900, ' ms')"),
        "reason": F.expr("if(station = 'dlq', 'exhausted', null)"), "fingerprint": F.concat(F.lit("print-"), cause),
        "history": F.array(), "replays": F.lit(0), "null_value": F.lit(False),
    }  # fmt: skip
    success = {
        "kind": F.lit("succeeded"), "v": F.lit(1), "group": F.lit(GROUP), "handler": F.lit(HANDLER),
        "failure_id": F.col("failure_id"), "origin": F.col("origin"), "replays": F.lit(0), "attempt": F.col("step"),
        "started_ms": F.col("started_ms"), "ended_ms": F.col("started_ms") + 200, "lateness_ms": F.expr("number % 90"),
    }  # fmt: skip
    is_event = F.col("station") == "events"
    failed = steps.select(
        "partition",
        (F.col("origin_offset") + F.col("step")).alias("offset"),
        F.col("started_ms").alias("timestamp_ms"),
        F.when(~is_event, F.sha2(F.expr("cast(number % 50000 as string)"), 256)).alias("key_hash"),
        "station",
        "failure_id",
        F.when(~is_event, _struct(metadata, METADATA)).alias("metadata"),
        F.when(is_event, _struct(success, EVENT)).alias("event"),
    )
    counted = _progress(lives, failures)
    return _whole(failed.unionByName(counted, allowMissingColumns=True))


def _lives(spark: SparkSession, failures: int) -> DataFrame:
    """Return one row for each record that failed."""
    steps = "case when id % 20 < 12 then 2 when id % 20 < 17 then 3 when id % 20 < 19 then 5 else 1 end"
    return spark.range(failures).select(
        F.col("id").alias("number"),
        (F.col("id") % PARTITIONS).cast("int").alias("partition"),
        (F.expr(f"id div {PARTITIONS}") * ONE_FAILS_OF).alias("origin_offset"),
        F.expr(steps).alias("steps"),
        (F.col("id") * 20 + NOON_MS).alias("began_ms"),
    )


def _width(failures: int) -> int:
    """Return how many offsets of the main topic one progress event covers."""
    return -(-failures // PARTITIONS // RANGES) * ONE_FAILS_OF + ONE_FAILS_OF


def _progress(lives: DataFrame, failures: int) -> DataFrame:
    from retryapp.pipeline.schemas import EVENT

    width = _width(failures)
    ranges = lives.groupBy("partition", F.floor(F.col("origin_offset") / width).alias("range")).agg(
        F.count(F.lit(1)).alias("failed")
    )
    event = {
        "kind": F.lit("progress"), "v": F.lit(1), "group": F.lit(GROUP), "handler": F.lit(HANDLER), "main": F.lit(MAIN),
        "partition": F.col("partition"), "from_offset": F.col("range") * width,
        "to_offset": (F.col("range") + 1) * width, "from_ms": F.lit(NOON_MS), "to_ms": F.lit(NOON_MS + 60_000),
        "received": F.col("failed") * ONE_FAILS_OF, "first_try_ok": F.col("failed") * (ONE_FAILS_OF - 1),
        "failed": F.col("failed"), "skipped": F.lit(0),
    }  # fmt: skip
    return ranges.select(
        "partition",
        (F.col("range") * width).alias("offset"),  # no step is 0: no other record has it
        F.lit(NOON_MS).cast("long").alias("timestamp_ms"),
        F.lit("events").alias("station"),
        _struct(event, EVENT).alias("event"),
    )


def _struct(columns: Mapping[str, Column], schema: T.StructType) -> Column:
    given = (columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in schema)
    return F.struct(*given)


def _whole(rows: DataFrame) -> DataFrame:
    """Add the columns that are the same everywhere, and those that an analysis does not read."""
    from retryapp.pipeline.schemas import RECORDS
    from retryapp.pipeline.transform import utc_day

    plain = {
        "cluster_id": F.lit(CLUSTER), "topic_id": F.concat(F.lit("id-"), "station"), "epoch": F.lit(1),
        "topic": F.concat(F.lit(f"{GROUP}.{MAIN}."), "station"), "date": utc_day(F.col("timestamp_ms")),
        "group": F.lit(GROUP), "main": F.lit(MAIN), "run_id": F.lit("bench"), "headers": F.array(),
    }  # fmt: skip
    return rows.select(
        *(
            plain.get(name, F.col(name) if name in rows.columns else F.lit(None)).cast(field.dataType).alias(name)
            for name, field in zip(RECORDS.names, RECORDS, strict=True)
        )
    )


def taken_cut(failures: int) -> TakenCut:
    """Return the cut behind all of it."""
    from retryapp.pipeline.analysis.cuts import TakenCut
    from retryapp.pipeline.sources import Source, Sources

    main = Source(topic=MAIN, topic_id=TOPIC_ID, group=GROUP, main=MAIN, station="main", partitions=PARTITIONS)
    last = -(-failures // PARTITIONS) * ONE_FAILS_OF
    end = -(-last // _width(failures)) * _width(failures)
    return TakenCut(
        mains=Sources(cluster_id=CLUSTER, group=GROUP, topics=(main,)),
        offsets={(MAIN, number): end for number in range(PARTITIONS)},
        ends={},
        retention_ms={f"{GROUP}.{MAIN}.dlq": 30 * 86_400_000},
    )


def _timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return round(time.monotonic() - began_s, 1)


@click.command()
@click.option("--events", type=click.IntRange(min=10_000), default=5_000_000, show_default=True)
def main(events: int) -> None:
    """Measure the analysis; prints one JSON object."""
    from retryapp.pipeline.analysis.derived import Derived
    from retryapp.pipeline.analysis.job import Analysis
    from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, traces_of
    from retryapp.pipeline.analysis.schemas import CUT
    from retryapp.pipeline.lake import open_lake
    from retryapp.pipeline.tables import RECORDS_TABLE, Tables

    failures = -(-events * 20 // RECORDS_OF_20)
    with Run() as run, spark_session() as spark:
        lake = open_lake(spark, str(run.folder / "lake"))
        Tables(spark, lake).ensure_records()
        rows = rows_of(spark, failures)
        write_s = _timed(lambda: rows.write.format("delta").mode("append").save(lake.table(RECORDS_TABLE)))
        taken, derived = taken_cut(failures), Derived(spark, lake)
        load, before = os.getloadavg()[0], processor_s()
        cut = spark.createDataFrame(taken.rows, CUT)
        journeys = journeys_of(before_cut(traces_of(derived.records()[0]), cut))
        journeys_s = _timed(lambda: derived.put_journeys(journeys, whole=True))
        click.echo(f"archive written in {write_s:.1f} s, journeys in {journeys_s:.1f} s; now the analysis", err=True)
        job = Analysis(spark, lake, now_ms=lambda: time.time_ns() // 1_000_000)
        result = job.run([taken], broker="localhost:9092", full=True)
        used = processor_s() - before
    if result.journeys != failures:
        raise RuntimeError(f"{result.journeys} journeys were made of {failures}")
    figures = {
        "events": failures * RECORDS_OF_20 // 20,
        "journeys": result.journeys,
        "write_s": write_s,
        "journeys_s": journeys_s,
        "analysis_s": round(result.elapsed_ms / 1_000, 1),
        "wanted_s": WANTED_S,
        "cpu_s": {name: round(ms / 1_000, 1) for name, ms in used.items()},
        "failed_checks": [verdict.name for verdict in result.verdicts if verdict.failures],
    }
    show(figures, load)


if __name__ == "__main__":
    main()

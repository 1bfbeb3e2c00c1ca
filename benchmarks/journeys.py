"""`python -m benchmarks.journeys`: how long the analysis takes over an archive of millions of records.

Steps: a lake whose archive Spark itself writes, without Kafka, with headers and events as workers write them; the whole
analysis, as ``retryapp pipeline analyse`` makes it; the facts of a report; an analysis without news.

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
    lives = _lives(spark, failures)
    kind = "case when step < steps or number % 20 = 19 then 'retry' when number % 20 < 17 then 'events' else 'dlq' end"
    steps = (
        lives.select("*", F.explode(F.sequence(F.lit(1), "steps")).alias("step"))
        .withColumn("station", F.expr(kind))
        .withColumn("started_ms", F.expr("began_ms + (step - 1) * 60010"))
        .withColumn("origin", F.expr(f"concat('{MAIN}@{TOPIC_ID}/', partition, '/', origin_offset)"))
    )
    cause = F.expr("number div 5000 % 40")
    said = {
        "retry-version": F.lit(1), "retry-group": F.lit(GROUP), "retry-handler": F.lit(HANDLER),
        "retry-origin": F.col("origin"), "retry-origin-timestamp-ms": F.col("began_ms"), "retry-attempt": F.col("step"),
        "retry-due-ms": F.expr("if(station = 'retry', started_ms + 60000, null)"),
        "retry-started-ms": F.col("started_ms"), "retry-policy": F.lit("5f1c2d3e"),
        "retry-tier": F.expr("if(station = 'retry', '1m', null)"), "retry-first-failed-ms": F.col("began_ms"),
        "retry-last-failed-ms": F.col("started_ms") + 250,
        "retry-error-type": F.concat(F.lit("shop.errors.Error"), cause),
        "retry-error-message": F.expr("concat('10.0.0.', number % 250, ':443 refused after ', number % 900, ' ms')"),
        "retry-reason": F.expr("if(station = 'dlq', 'exhausted', null)"),
        "retry-fingerprint": F.concat(F.lit("print-"), cause),
    }  # fmt: skip
    pairs = (F.when(value.isNotNull(), _pair(F.lit(name), value)) for name, value in said.items())
    success = {
        "v": F.lit(1), "kind": F.lit("succeeded"), "group": F.lit(GROUP), "handler": F.lit(HANDLER),
        "failure_id": F.concat(F.lit(f"{GROUP}/"), "origin"), "origin": F.col("origin"), "replays": F.lit(0),
        "attempt": F.col("step"), "delivery": F.col("step"), "started_ms": F.col("started_ms"),
        "ended_ms": F.col("started_ms") + 200, "lateness_ms": F.expr("number % 90"),
    }  # fmt: skip
    is_event = F.col("station") == "events"
    failed = steps.select(
        "partition",
        (F.col("origin_offset") + F.col("step")).alias("offset"),
        F.col("started_ms").alias("timestamp_ms"),
        F.when(~is_event, F.sha2(F.expr("cast(number % 50000 as string)"), 256)).alias("key_hash"),
        "station",
        F.when(~is_event, F.array_compact(F.array(*pairs))).alias("headers"),
        F.when(is_event, _json(success)).otherwise(F.lit(b"x" * 300)).alias("value"),
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
        _json(event).alias("value"),
    )


def _pair(name: Column, value: Column) -> Column:
    return F.struct(name.alias("key"), value.cast("string").cast("binary").alias("value"))


def _json(columns: Mapping[str, Column]) -> Column:
    return F.to_json(F.struct(*(column.alias(name) for name, column in columns.items()))).cast("binary")


def _whole(rows: DataFrame) -> DataFrame:
    """Add the columns that are the same everywhere."""
    from retryapp.pipeline.schemas import RECORDS

    plain = {
        "cluster_id": F.lit(CLUSTER), "topic_id": F.concat(F.lit("id-"), "station"), "epoch": F.lit(1),
        "topic": F.concat(F.lit(f"{GROUP}.{MAIN}."), "station"),
        "date": F.timestamp_millis("timestamp_ms").cast("date"),
        "group": F.lit(GROUP), "main": F.lit(MAIN), "run_id": F.lit("bench"),
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

    last = -(-failures // PARTITIONS) * ONE_FAILS_OF
    end = -(-last // _width(failures)) * _width(failures)
    return TakenCut(
        group=GROUP,
        rows=[(CLUSTER, GROUP, MAIN, TOPIC_ID, number, end) for number in range(PARTITIONS)],
        ends={},
        retention_ms={f"{GROUP}.{MAIN}.dlq": 30 * 86_400_000},
        lives={f"{GROUP}.{MAIN}.dlq": "id-dlq"},
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return round(time.monotonic() - began_s, 1)


@click.command()
@click.option("--events", type=click.IntRange(min=10_000), default=5_000_000, show_default=True)
def main(events: int) -> None:
    """Measure the analysis; prints one JSON object."""
    from retryapp.cli._analyse import MANY_RECORDS
    from retryapp.pipeline.analysis.job import Analysis
    from retryapp.pipeline.lake import open_lake
    from retryapp.pipeline.report.facts import collect
    from retryapp.pipeline.tables import Tables

    failures = -(-events * 20 // RECORDS_OF_20)
    with Run() as run, spark_session(brief=events < MANY_RECORDS) as spark:
        lake = open_lake(spark, str(run.folder / "lake"))
        rows = rows_of(spark, failures)
        write_s = _timed(lambda: Tables(lake).append(rows))
        load, before = os.getloadavg()[0], processor_s()
        click.echo(f"archive written in {write_s:.1f} s; now the analysis", err=True)
        job = Analysis(lake, now_ms=_now_ms)
        taken = [taken_cut(failures)]
        result = job.run(taken, broker="localhost:9092")
        report_s = _timed(lambda: collect(lake, now_ms=_now_ms(), within_ms=86_400_000))
        again_s = _timed(lambda: job.run(taken, broker="localhost:9092"))
        used = processor_s() - before
    if result.journeys != failures:
        raise RuntimeError(f"{result.journeys} journeys were made of {failures}")
    figures = {
        "events": failures * RECORDS_OF_20 // 20,
        "journeys": result.journeys,
        "write_s": write_s,
        "analysis_s": round(result.elapsed_ms / 1_000, 1),
        "report_s": report_s,
        "without_news_s": again_s,
        "wanted_s": WANTED_S,
        "cpu_s": {name: round(ms / 1_000, 1) for name, ms in used.items()},
        "failed_checks": [verdict.name for verdict in result.verdicts if verdict.failures],
    }
    show(figures, load)


if __name__ == "__main__":
    main()

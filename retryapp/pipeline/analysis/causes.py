"""Why records fail: causes by fingerprint and reason, bursts of like failures, keys that fail again and again."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from retryapp.core.causes import template_of
from retryapp.pipeline.analysis.journeys import attempts_of, sorted_rows
from retryapp.pipeline.analysis.schemas import CAUSES, OFFENDERS, OUTAGES, TIMELINE

EXAMPLES: Final = 3
MINUTE_MS: Final = 60_000
BURST_FAILURES: Final = 10  # fewer failures are no outage
BURST_GAP_MINUTES: Final = 2  # minutes without a burst after which the next one is another outage
BURST_FACTOR: Final = 3.0  # a minute of a burst has so many times the cause's usual failures
LIKE_BURST: Final = 5  # fewer failures in a minute do not make it one of a burst
INTERVALS: Final = 72
LENGTHS_MS: Final = tuple(
    seconds * 1_000 for seconds in (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400, 604_800, 2_592_000)
)
REPEATS: Final = 2  # records of a key that failed, from which it is an offender


def _failures(journeys: DataFrame) -> DataFrame:
    """Return one row for each failed attempt: the journey's columns and ``at``."""
    return attempts_of(journeys).where(F.col("at.outcome") != "succeeded")


def causes(journeys: DataFrame) -> DataFrame:
    """Return what records failed of; dead letters by reason, apart from records that are not dead of it."""
    by = ["group", "main", "print"]
    failed = _failures(journeys).withColumn("print", F.col("at.fingerprint"))
    # one row for each record and cause, so that records are counted without a distinct
    of_records = failed.groupBy(*by, "failure_id", "fate", "reason", F.col("fingerprint").alias("last_print")).agg(
        F.count(F.lit(1)).alias("failures"),
        F.min("at.ended_ms").alias("first_ms"),
        F.max("at.ended_ms").alias("last_ms"),
        F.max_by("at.error_message", "at.delivery").alias("message"),
        F.max_by("at.error_type", "at.delivery").alias("type"),
    )
    is_last = F.col("print").eqNullSafe(F.col("last_print"))
    is_dead = is_last & (F.col("fate") == "dead")
    newest = F.max_by(F.struct("failure_id", "message"), F.struct("last_ms", "failure_id"), EXAMPLES)
    whole = of_records.groupBy(*by, F.when(is_dead, F.col("reason")).alias("reason")).agg(
        F.sum("failures").alias("failures"),
        F.count(F.lit(1)).alias("records"),
        F.sum(is_dead.cast("long")).alias("dead"),
        F.sum((is_last & (F.col("fate") == "pending")).cast("long")).alias("pending"),
        F.sum((F.col("fate") == "done").cast("long")).alias("recovered"),
        F.min("first_ms").alias("first_seen_ms"),
        F.max("last_ms").alias("last_seen_ms"),
        F.max_by("type", F.struct("last_ms", "failure_id")).alias("error_type"),
        newest.alias("examples"),
    )
    name = F.udf(template_of, "string", useArrow=False)(F.coalesce(F.col("examples")[0]["message"], F.lit("")))
    named = whole.withColumnRenamed("print", "fingerprint").withColumn("template", name)
    order = [F.desc("dead"), F.desc("failures"), *map(F.asc, ("fingerprint", "reason", "group", "main"))]
    return sorted_rows(named.select(*CAUSES.fieldNames()), *order)


def outages(journeys: DataFrame) -> DataFrame:
    """Return bursts of like failures.

    A minute is of a burst if it has ``LIKE_BURST`` failures and ``BURST_FACTOR`` times the cause's median minute (with
    few minutes: any). Those at most ``BURST_GAP_MINUTES`` apart are one outage, from ``BURST_FAILURES`` on.
    """
    by = ["group", "main", "fingerprint"]
    failed = _failures(journeys).select(
        "group",
        "main",
        F.col("at.fingerprint").alias("fingerprint"),
        F.col("at.error_type").alias("error_type"),
        F.col("at.ended_ms").alias("ended_ms"),
    )
    minutes = (
        failed.withColumn("minute", F.floor(F.col("ended_ms") / F.lit(MINUTE_MS)))
        .groupBy(*by, "minute")
        .agg(
            F.count(F.lit(1)).alias("failures"),
            F.min("ended_ms").alias("from_ms"),
            F.max("ended_ms").alias("to_ms"),
            F.max("error_type").alias("error_type"),
        )
    )
    usual = minutes.groupBy(*by).agg(
        F.percentile_approx("failures", 0.5).cast("double").alias("usual"), F.count(F.lit(1)).alias("seen_minutes")
    )
    steady = (F.col("seen_minutes") > F.lit(3 * BURST_GAP_MINUTES)) & (
        F.col("failures") < F.col("usual") * F.lit(BURST_FACTOR)
    )
    hot = minutes.join(usual, on=by, how="inner").where((F.col("failures") >= LIKE_BURST) & ~steady)
    in_order = Window.partitionBy(*by).orderBy("minute")
    apart = F.coalesce(F.col("minute") - F.lag("minute").over(in_order) > BURST_GAP_MINUTES, F.lit(True))
    islands = hot.withColumn("island", F.sum(apart.cast("long")).over(in_order))
    bursts = islands.groupBy(*by, "island").agg(
        F.min("from_ms").alias("from_ms"),
        F.max("to_ms").alias("to_ms"),
        F.sum("failures").alias("failures"),
        F.max("failures").alias("peak_per_minute"),
        F.max("usual").alias("usual_per_minute"),
        F.max("error_type").alias("error_type"),
    )
    found = bursts.where(F.col("failures") >= BURST_FAILURES)
    return sorted_rows(found.select(*OUTAGES.fieldNames()), F.desc("to_ms"), F.desc("failures"), "fingerprint")


def timeline(journeys: DataFrame) -> DataFrame:
    """Return failures by cause over time, in at most some ``INTERVALS`` intervals of one length."""
    failed = _failures(journeys).select("group", "main", F.col("at.fingerprint").alias("fingerprint"), "at.ended_ms")
    span = failed.agg((F.max("ended_ms") - F.min("ended_ms")).alias("span_ms"))
    fitting = [F.when(F.col("span_ms") <= length * INTERVALS, F.lit(length)) for length in LENGTHS_MS]
    length = span.select(F.coalesce(*fitting, F.lit(LENGTHS_MS[-1])).cast("long").alias("length_ms"))
    begun = failed.crossJoin(F.broadcast(length)).withColumn(
        "from_ms", F.col("ended_ms") - F.pmod(F.col("ended_ms"), F.col("length_ms"))
    )
    counted = begun.groupBy("group", "main", "fingerprint", "from_ms", "length_ms").agg(
        F.count(F.lit(1)).alias("failures")
    )
    return sorted_rows(counted.select(*TIMELINE.fieldNames()), "from_ms", "group", "main", "fingerprint")


def offenders(journeys: DataFrame) -> DataFrame:
    """Return keys of which more than one record failed."""
    failed = F.size(F.filter("attempts", lambda attempt: attempt["outcome"] != "succeeded")).cast("long")
    keyed = journeys.where(F.col("key_hash").isNotNull()).withColumn("tries", failed)
    whole = keyed.groupBy("group", "main", "key_hash").agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("tries").alias("failures"),
        F.sum((F.col("fate") == "dead").cast("long")).alias("dead"),
        F.sum((F.col("fate") == "pending").cast("long")).alias("pending"),
        F.max("ended_ms").alias("last_seen_ms"),
        F.max_by("failure_id", F.struct("ended_ms", "failure_id")).alias("example"),
    )
    order = [F.desc("dead"), F.desc("records"), F.desc("failures"), F.asc("key_hash")]
    return sorted_rows(whole.where(F.col("records") >= REPEATS).select(*OFFENDERS.fieldNames()), *order)

"""Figures of the journeys: recovery by attempt and tier, lateness, and cost."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from retryapp.pipeline.analysis.journeys import attempts_of, sorted_rows
from retryapp.pipeline.analysis.schemas import COST, FUNNEL, LATENESS

ACCURACY: Final = 10_000  # of quantiles: the error of a rank is at most 1 in so many
MINUTE_MS: Final = 60_000.0


def funnel(journeys: DataFrame, progress: DataFrame) -> DataFrame:
    """Return how many records each attempt brought home.

    The first row of a handler is its first deliveries: ``succeeded`` comes from the workers' own counts.
    """
    by = ["group", "main", "replayed", "attempt", "tier"]
    numbers = ("succeeded", "retried", "dead", "waiting")

    def part(frame: DataFrame, replayed: Column, attempt: Column, tier: Column, **counted: Column) -> DataFrame:
        counts = (counted.get(name, F.lit(0)).cast("long").alias(name) for name in numbers)
        place = (replayed.alias("replayed"), attempt.cast("long").alias("attempt"), tier.cast("string").alias("tier"))
        return frame.select("group", "main", *place, *counts)

    is_replay, outcome = F.col("at.replays") > 0, F.col("at.outcome")
    outcomes = {name: outcome == name for name in ("succeeded", "retried", "dead")}
    tried = part(attempts_of(journeys), is_replay, F.col("at.attempt"), F.col("at.tier"), **outcomes)
    first_tries = part(progress, F.lit(False), F.lit(1), F.lit(None), succeeded=F.col("first_try_ok"))
    pending, coming = journeys.where(F.col("fate") == "pending"), F.col("last_attempt") + 1
    waiting = part(pending, F.col("replays") > 0, coming, F.col("tier"), waiting=F.lit(1))
    whole = tried.unionByName(first_tries).unionByName(waiting).groupBy(*by)
    counts = whole.agg(*(F.sum(name).alias(name) for name in numbers))
    entered = counts.withColumn("entered", F.col("succeeded") + F.col("retried") + F.col("dead"))
    return sorted_rows(_shares(entered).select(*FUNNEL.fieldNames()), *by)


def _shares(counts: DataFrame) -> DataFrame:
    handler = Window.partitionBy("group", "main", "replayed")
    so_far = handler.orderBy("attempt").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    began = F.sum(F.when(F.col("attempt") == 1, F.col("entered"))).over(handler)
    return counts.withColumn("share", _ratio(F.col("succeeded"), F.col("entered"))).withColumn(
        "cumulative", _ratio(F.sum("succeeded").over(so_far), began)
    )


def _ratio(part: Column, whole: Column) -> Column:
    return F.when(whole > 0, part.cast("double") / whole)


def lateness(journeys: DataFrame) -> DataFrame:
    """Return how late attempts began, by tier and in all."""
    known = attempts_of(journeys).where(F.col("at.lateness_ms").isNotNull())
    late = known.select("group", "main", F.col("at.tier").alias("tier"), F.col("at.lateness_ms").alias("ms"))
    of_tiers = _quantiles(late.where(F.col("tier").isNotNull()), "group", "main", "tier")
    of_all = _quantiles(late, "group", "main").withColumn("tier", F.lit(None).cast("string"))
    return sorted_rows(of_tiers.unionByName(of_all).select(*LATENESS.fieldNames()), "group", "main", "tier")


def _quantiles(late: DataFrame, *by: str) -> DataFrame:
    quantiles = F.percentile_approx("ms", [0.5, 0.9, 0.99], ACCURACY)
    found = late.groupBy(*by).agg(
        F.count(F.lit(1)).alias("attempts"),
        quantiles.alias("quantiles"),
        F.max("ms").alias("max_ms"),
        F.sum((F.col("ms") < 0).cast("long")).alias("early"),
    )
    for number, name in enumerate(("p50_ms", "p90_ms", "p99_ms")):
        found = found.withColumn(name, F.col("quantiles")[number].cast("long"))
    return found.drop("quantiles")


def cost(journeys: DataFrame) -> DataFrame:
    """Return what recovery costs, as lower bounds: runs of one attempt that a crash repeated are not seen here."""
    spent = "aggregate(attempts, 0L, (n, a) -> n + greatest(0L, coalesce(a.ended_ms - a.started_ms, 0L)))"
    each = (
        journeys.withColumn("tries", F.size("attempts").cast("long"))
        .withColumn("spent_ms", F.expr(spent))
        .withColumn("recovered", F.col("fate") == "done")
        .withColumn("is_dead", F.col("fate") == "dead")
    )
    wait_ms = F.when(F.col("recovered"), F.col("ended_ms") - F.col("first_failed_ms"))
    sums = each.groupBy("group", "main").agg(
        F.count(F.lit(1)).alias("records"),
        F.sum(F.col("recovered").cast("long")).alias("recovered"),
        F.sum(F.col("is_dead").cast("long")).alias("dead"),
        F.sum("tries").alias("attempts"),
        F.sum("spent_ms").alias("handler_ms"),
        F.sum(F.when(F.col("is_dead"), F.col("tries")).otherwise(0)).alias("attempts_on_dead"),
        F.sum(F.when(F.col("is_dead"), F.col("spent_ms")).otherwise(0)).alias("handler_ms_on_dead"),
        F.percentile_approx(wait_ms, 0.5, ACCURACY).cast("long").alias("wait_p50_ms"),
        F.percentile_approx(wait_ms, 0.9, ACCURACY).cast("long").alias("wait_p90_ms"),
    )
    rates = sums.withColumn("attempts_per_recovered", _ratio(F.col("attempts"), F.col("recovered"))).withColumn(
        "minutes_per_recovered", _ratio(F.col("handler_ms") / F.lit(MINUTE_MS), F.col("recovered"))
    )
    return sorted_rows(rates.select(*COST.fieldNames()), "group", "main")

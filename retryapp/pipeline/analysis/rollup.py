"""The rollup: all attempts of all journeys, summed up by handler, cause, outcome and interval; and how long waits were.

Funnel, causes, outages, cost and time line are all read from it, for any window, without the journeys.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from retryapp.pipeline.analysis.journeys import has_failed

LENGTHS_MS: Final = tuple(
    seconds * 1_000 for seconds in (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400, 604_800, 2_592_000)
)
MOST_BINS: Final = 50_000  # of most rows: 14 hours by the second, 35 days by the minute
HOUR_MS: Final = 3_600_000
LATE: Final = "late"
RECOVERY: Final = "recovery"
_FINE: Final = 100.0  # buckets differ by 1 %


def fitting_length(span_ms: int, most: int) -> int:
    """Return the shortest interval of which at most so many cover a span, in milliseconds.

    >>> fitting_length(3_600_000, 72), fitting_length(7 * 86_400_000, 50_000)
    (60000, 15000)
    """
    return next((length for length in LENGTHS_MS if span_ms <= length * most), LENGTHS_MS[-1])


def bin_of(instant_ms: Column, length_ms: int) -> Column:
    """Return the beginning of the interval in which an instant lies."""
    return instant_ms - F.pmod(instant_ms, F.lit(length_ms))


def rollup(journeys: DataFrame, progress: DataFrame, *, length_ms: int) -> DataFrame:
    """Return what ``schemas.ROLLUP`` has: attempts from journeys, first-try successes from workers' counts."""
    # by functions that Spark compiles, which none over the elements of an array is; and before the sums, or each row of
    # theirs would have a copy of all attempts: a policy without an end has tens of thousands
    tried, backwards = F.size("attempts"), F.reverse("attempts.fingerprint")
    whole = journeys.withColumns({"tried": tried, "backwards": backwards})
    every = whole.select(*whole.columns, F.posexplode_outer("attempts").alias("place", "at"))
    is_last = F.array_position("backwards", F.col("at.fingerprint")) == F.col("tried") - F.col("place")
    every = every.withColumn("is_last", is_last).drop("attempts", "backwards")  # null where it did not fail
    is_dead = F.col("fate").isin("dead", "discarded")
    was_held = is_dead & F.col("place").isNull()  # to its end, and never delivered: its letter alone has a cause
    is_last_of_cause = F.coalesce("is_last", was_held)
    fingerprint, error_type, message = (
        F.when(was_held, F.col(name)).otherwise(F.col(f"at.{name}"))
        for name in ("fingerprint", "error_type", "error_message")
    )
    is_cause = fingerprint == F.col("fingerprint")
    is_final_cause = is_last_of_cause & is_cause
    is_newest = F.col("place").isNull() | (F.col("place") == F.col("tried") - 1)
    is_waiting = is_newest & (F.col("fate") == "pending")
    at_ms = F.coalesce("at.ended_ms", "ended_ms", "last_timestamp_ms")
    by: dict[str, Column] = {
        "group": F.col("group"),
        "main": F.col("main"),
        "bin_ms": bin_of(at_ms, length_ms),
        "fingerprint": fingerprint,
        "reason": F.when(is_cause & is_dead, F.col("reason")),
        "replayed": F.coalesce("at.replays", "replays") > 0,
        "attempt": F.col("at.attempt"),
        "tier": F.col("at.tier"),
        "outcome": F.col("at.outcome"),
        "is_first": F.coalesce(F.col("at.delivery") == 1, F.lit(False)),
        "fate": F.when(has_failed(), F.col("fate")),
        "next_attempt": F.when(is_waiting, F.col("last_attempt") + 1),
        "next_tier": F.when(is_waiting, F.col("tier")),
    }
    spent_ms = F.greatest(F.lit(0), F.coalesce(F.col("at.ended_ms") - F.col("at.started_ms"), F.lit(0)))
    example = F.struct("failure_id", message.alias("message"))
    newest = F.struct(at_ms, "failure_id", "at.delivery")
    is_attempt = F.col("place").isNotNull()
    sums = {
        "attempts": F.count_if(is_attempt),
        "records": F.count_if(is_last_of_cause),
        "dead": F.count_if(is_final_cause & is_dead),
        "pending": F.count_if(is_final_cause & (F.col("fate") == "pending")),
        "journeys": F.count_if(is_newest),
        "handler_ms": F.sum(spent_ms),
        "first_ms": F.min(at_ms),
        "last_ms": F.max(at_ms),
        "error_type": F.max_by(error_type, newest),
        "example": F.max_by(example, F.when(is_last_of_cause, newest)),
    }
    mark = F.xxhash64(*by.values()).alias("mark")  # texts among the sums need a sort, which compares eight bytes first
    grouped = every.groupBy(mark, *(column.alias(name) for name, column in by.items()))
    of_journeys = grouped.agg(*(column.alias(name) for name, column in sums.items()))
    return of_journeys.unionByName(_first_tries(journeys, progress, length_ms), allowMissingColumns=True)


def _first_tries(journeys: DataFrame, progress: DataFrame, length_ms: int) -> DataFrame:
    """Return first-try successes by interval, those of a step spread evenly over its time."""
    first, last = bin_of(F.col("from_ms"), length_ms), bin_of(F.col("to_ms"), length_ms)
    places = _steps(journeys, progress, length_ms).select(
        "group", "main", "ok", F.posexplode(F.sequence(first, last, F.lit(length_ms))).alias("n", "bin_ms"),
        ((last - first) / F.lit(length_ms) + 1).cast("long").alias("count"),
    )  # fmt: skip
    share = F.expr("(n + 1) * ok div count - n * ok div count")
    summed = places.groupBy("group", "main", "bin_ms").agg(F.sum(share).alias("attempts"))
    return summed.where(F.col("attempts") > 0).select(
        "*",
        F.lit(False).alias("replayed"),
        F.lit(1).alias("attempt"),
        F.lit("succeeded").alias("outcome"),
        F.lit(True).alias("is_first"),
    )


def _steps(journeys: DataFrame, progress: DataFrame, length_ms: int) -> DataFrame:
    """Return how many records succeeded at first try from one time (``from_ms``) to another (``to_ms``).

    Workers count by ranges of up to a minute. Records begin in the order of their offsets, so failures, whose times are
    known, divide a range: successes of a backlog are not spread over the silence before it. Of each interval the first
    failure does, with how many there were. Of several in a row the earliest counts: one before it that began later was
    held. One beside the time of the range, as by another clock, says nothing.
    """
    place, first = ["cluster_id", "group", "main", "partition"], F.get("attempts", 0)
    end_ms = F.greatest("from_ms", "to_ms")
    begin_ms = F.greatest("from_ms", end_ms - HOUR_MS)  # a longer one is of a clock that was set meanwhile
    counted = F.struct("from_offset", "to_offset", begin_ms.alias("begin_ms"), end_ms.alias("end_ms"), "first_try_ok")
    ranges = progress.where(F.col("first_try_ok") > 0).select(
        *place, F.col("from_offset").alias("at"), counted.alias("range")
    )
    tried = journeys.where((first["delivery"] == 1) & first["error_type"].isNotNull()).select(
        *place, "offset", F.coalesce(first["started_ms"], first["ended_ms"]).alias("began_ms")
    )
    of_bins = tried.groupBy(*place, bin_of(F.col("began_ms"), length_ms))  # one of each: all would have to be sorted
    first_of_bin = {"at": F.min("offset"), "at_ms": F.min("began_ms"), "failures": F.count(F.lit(1))}
    failed = of_bins.agg(*(column.alias(name) for name, column in first_of_bin.items())).select(*place, *first_of_bin)
    in_order = Window.partitionBy(*place).orderBy("at", F.col("range").isNull(), "range.to_offset")
    to_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last = F.last("range", ignorenulls=True).over(to_here)
    nth = F.count("range").over(to_here)  # two ranges may be equal
    both = ranges.unionByName(failed, allowMissingColumns=True).withColumns({"of": last, "nth": nth})
    is_in_time = F.col("at_ms").between(F.col("of.begin_ms"), F.col("of.end_ms"))
    is_range = F.col("range").isNotNull()
    points = both.where(is_range | ((F.col("at") < F.col("of.to_offset")) & is_in_time))
    in_range = Window.partitionBy(*place, "nth").orderBy("at", F.col("range").isNull())
    since = F.min("at_ms").over(in_range.rowsBetween(Window.currentRow, Window.unboundedFollowing))
    following = F.lead("at").over(in_range)
    offsets = F.coalesce(following, "of.to_offset") - F.col("at")
    between = F.greatest(F.lit(0), offsets - F.coalesce("failures", F.lit(0)))
    steps = points.withColumns(
        {"from_ms": F.when(is_range, F.col("of.begin_ms")).otherwise(since), "between": between, "following": following}
    )
    whole = in_range.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    upto, total = F.sum("between").over(in_range), F.greatest(F.lit(1), F.sum("between").over(whole))
    so_far = F.floor(F.col("of.first_try_ok") * (upto / total))
    steps = steps.withColumns(
        {
            "to_ms": F.coalesce(F.lead("from_ms").over(in_range), "of.end_ms"),
            "so_far": F.when(F.col("following").isNull(), F.col("of.first_try_ok")).otherwise(so_far),
        }
    )
    ok = F.col("so_far") - F.coalesce(F.lag("so_far").over(in_range), F.lit(0))
    return steps.select("group", "main", "from_ms", "to_ms", ok.alias("ok")).where(F.col("ok") > 0)


def bucket_of(length_ms: Column) -> Column:
    """Return the number of the bucket of a length: whole milliseconds up to 100, 1 % apart beyond."""
    return F.when(length_ms >= 0, F.round(F.lit(_FINE) * F.log1p(length_ms)).cast("long"))


def delays(journeys: DataFrame) -> DataFrame:
    """Return what ``schemas.DELAYS`` has."""
    tried = journeys.select("group", "main", F.explode("attempts").alias("at"))
    late = tried.where(F.col("at.lateness_ms").isNotNull()).select(
        "group", "main", F.lit(LATE).alias("kind"), F.col("at.tier").alias("tier"),
        F.col("at.lateness_ms").alias("length_ms"), F.coalesce("at.started_ms", "at.ended_ms").alias("at_ms"),
    )  # fmt: skip
    recovered = journeys.where((F.col("fate") == "done") & F.col("first_failed_ms").isNotNull()).select(
        "group", "main", F.lit(RECOVERY).alias("kind"), F.lit(None).cast("string").alias("tier"),
        F.greatest(F.lit(0), F.col("ended_ms") - F.col("first_failed_ms")).alias("length_ms"),
        F.col("ended_ms").alias("at_ms"),
    )  # fmt: skip
    by = ["group", "main", "bin_ms", "kind", "tier", "bucket"]
    both = late.unionByName(recovered).withColumn("bin_ms", bin_of(F.col("at_ms"), HOUR_MS))
    counted = both.withColumn("bucket", bucket_of(F.col("length_ms"))).groupBy(*by)
    return counted.agg(F.count(F.lit(1)).alias("attempts"), F.max("length_ms").alias("max_ms"))

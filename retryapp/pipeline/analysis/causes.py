"""Why records fail: causes by fingerprint and reason, their course over time, keys that fail again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from retryapp.core.causes import cause_id, template_of
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.pipeline.analysis.rollup import fitting_length

EXAMPLES: Final = 3
MOST_CAUSES: Final = 1_000  # the worst are named
INTERVALS: Final = 72
REPEATS: Final = 2  # records of a key that failed, from which it is an offender
SHOWN: Final = 20
_BY: Final = ("group", "main", "fingerprint", "reason")

Row = dict[str, Any]


def causes(rollup: DataFrame, *, since_ms: int | None = None, until_ms: int = 0) -> list[Row]:
    """Return what records failed of, the deadliest first; dead letters by reason, apart from what is not dead of it.

    With ``since_ms`` only attempts that ended since; ``before`` (else None) has the records of the time before that is
    as long as from then ``until_ms``, and ``first_seen_ms`` is of all times.
    """
    failed = rollup.where(F.col("fingerprint").isNotNull())
    inside, before = F.lit(True), F.lit(False)
    if since_ms is not None:
        inside = F.col("bin_ms") >= since_ms
        before = ~inside & (F.col("bin_ms") >= 2 * since_ms - until_ms)
    recovered = inside & (F.col("fate") == "done")
    sums = {
        "failures": F.sum(F.when(inside, F.col("attempts"))),
        **{name: F.sum(F.when(inside, F.col(name))) for name in ("records", "pending")},
        **{fate: F.sum(F.when(inside & (F.col("fate") == fate), F.col("dead"))) for fate in ("dead", "discarded")},
        "recovered": F.sum(F.when(recovered, F.col("records"))),
        "before": F.sum(F.when(before, F.col("records"))),
    }
    newest = F.struct(F.col("fate") == "dead", "last_ms", "example.failure_id")  # of a discarded one nothing is there
    found = failed.groupBy(*_BY).agg(
        *(F.coalesce(total, F.lit(0)).alias(name) for name, total in sums.items()),
        F.min("first_ms").alias("first_seen_ms"),
        F.max("last_ms").alias("last_seen_ms"),
        F.max_by("error_type", "last_ms").alias("error_type"),
        F.max_by("example", F.when(F.col("records") > 0, newest), EXAMPLES).alias("examples"),
    )
    worst = found.where(F.greatest("failures", "records", "before") > 0)
    order = (F.desc("dead"), F.desc("failures"), *map(F.asc, ("fingerprint", "reason", "group", "main")))
    rows = [row.asDict(recursive=True) for row in worst.orderBy(*order).limit(MOST_CAUSES).collect()]
    for row in rows:
        message = row["examples"][0]["message"] or ""
        row["template"] = template_of(message)
        row["cause_id"] = cause_id(row["error_type"] or "", row["fingerprint"], message)
        row["before"] = None if since_ms is None else row["before"]
    return rows


def timeline(
    rows: Iterable[Row], named: Collection[str], *, bin_ms: int, begin_ms: int = 0, end_ms: int = MAX_EPOCH_MS
) -> list[Row]:
    """Return failed attempts by interval and cause (None: all that are not ``named``), in at most ``INTERVALS``.

    ``rows`` are those of ``outages.by_interval``. Others than those from ``begin_ms`` to ``end_ms`` are left out.
    """
    shown = [row for row in rows if row["fingerprint"] and begin_ms <= row["bin_ms"] <= end_ms]
    if not shown:
        return []
    times_ms = [row["bin_ms"] for row in shown]
    length_ms = max(bin_ms, fitting_length(max(times_ms) + bin_ms - min(times_ms), INTERVALS - 1))
    counts: dict[tuple[int, str | None], int] = defaultdict(int)
    for row in shown:
        cause = row["fingerprint"] if row["fingerprint"] in named else None
        counts[row["bin_ms"] - row["bin_ms"] % length_ms, cause] += row["records"]
    names = ("from_ms", "fingerprint", "length_ms", "failures")
    found = [dict(zip(names, (*place, length_ms, count), strict=True)) for place, count in counts.items()]
    return sorted(found, key=lambda row: (row["from_ms"], row["fingerprint"] or ""))


def offenders(journeys: DataFrame) -> Row:
    """Return keys of which several records failed: ``rows`` of the worst, ``keys`` and ``deadly`` in all."""
    failed = F.size(F.filter("attempts", lambda attempt: ~attempt["outcome"].isin("succeeded", "skipped"))).cast("long")
    keyed = journeys.where(F.col("key_hash").isNotNull()).withColumn("tries", failed)
    whole = keyed.groupBy(F.xxhash64("key_hash").alias("mark"), "group", "main", "key_hash").agg(  # see the rollup
        F.count(F.lit(1)).alias("records"),
        F.sum("tries").alias("failures"),
        F.count_if(F.col("fate") == "dead").alias("dead"),
        F.count_if(F.col("fate") == "pending").alias("pending"),
        F.max("ended_ms").alias("last_seen_ms"),
        F.max_by("failure_id", F.struct(F.col("fate") == "dead", "ended_ms", "failure_id")).alias("example"),
    )
    again = whole.where(F.col("records") >= REPEATS)
    worst = F.max_by(F.struct(*whole.drop("mark").columns), F.struct("dead", "records", "failures", "key_hash"), SHOWN)
    (found,) = again.agg(
        F.count(F.lit(1)).alias("keys"), F.count_if(F.col("dead") > 1).alias("deadly"), worst.alias("rows")
    ).collect()
    return {**found.asDict(recursive=True), "rows": [row.asDict() for row in found["rows"] or ()]}

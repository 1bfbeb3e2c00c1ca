"""Checks on the tables: each is a frame of the rows that fail it, and one Spark job counts all.

A failed check of severity ``error`` makes the command exit with 1; ``warn`` is only reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.core.classify import DeadReason
from retryapp.pipeline.analysis.journeys import attempts_of

ERROR: Final = "error"
WARN: Final = "warn"
EXAMPLES: Final = 5
FATES: Final = ("done", "pending", "dead")
OUTCOMES: Final = ("retried", "dead", "succeeded")
REASONS: Final = tuple(reason.value for reason in DeadReason)


@dataclass(frozen=True, slots=True)
class Check:
    """One check; ``text`` says what is wrong with ``rows``, which have a column ``example``."""

    name: str
    severity: str
    text: str
    rows: DataFrame


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    name: str
    severity: str
    failures: int
    text: str
    examples: tuple[str, ...]

    @property
    def is_error(self) -> bool:
        """Whether the command must exit with 1."""
        return self.severity == ERROR and self.failures > 0


def _example(*columns: str) -> Column:
    return F.concat_ws(" ", *(F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in columns)).alias(
        "example"
    )


def all_checks(
    records: DataFrame, journeys: DataFrame, progress: DataFrame, ledger: DataFrame, gaps: DataFrame
) -> list[Check]:
    """Return every check that these tables can answer; all are of the analysed groups."""
    checks: list[Check] = []

    def unique(name: str, frame: DataFrame, *columns: str) -> None:
        twice = frame.groupBy(*columns).count().where(F.col("count") > 1)
        checks.append(Check(name, ERROR, f"rows that share {', '.join(columns)}", twice.select(_example(*columns))))

    def none(name: str, frame: DataFrame, wrong: Column, text: str, *shown: str, severity: str = ERROR) -> None:
        checks.append(Check(name, severity, text, frame.where(wrong).select(_example(*shown))))

    def accepted(name: str, frame: DataFrame, column: str, values: Sequence[str], *shown: str) -> None:
        wrong = F.col(column).isNotNull() & ~F.col(column).isin(*values)
        none(name, frame, wrong, f"rows whose {column} is none of {', '.join(values)}", *shown, column)

    place = ("group", "main", "partition")
    tried = attempts_of(journeys).select("failure_id", "at.*")
    delivery = ("failure_id", "delivery")
    counted = F.col("first_try_ok") + F.col("failed") + F.col("skipped")
    no_reason = (F.col("fate") == "dead") & F.col("reason").isNull()
    unread = "records in quarantine: their failure ids are unknown"
    missing = "records with missing attempts: they were deleted from their topic before the archive read them"
    holes = "partitions with offsets that no progress event covers: they were set by hand, or an event is missing"
    extra = (F.col("extra") > 0) & (F.col("overlaps") == 0)
    # fmt: off
    unique("records are there once", records, "cluster_id", "topic_id", "partition", "offset")
    none("records can be read", records, F.col("unreadable").isNotNull(), unread,
         "topic", "partition", "offset", "unreadable", severity=WARN)
    unique("journeys.failure_id is unique", journeys, "failure_id")
    none("journeys.fate is there", journeys, F.col("fate").isNull(), "rows without fate", "failure_id")
    accepted("journeys.fate is known", journeys, "fate", FATES, "failure_id")
    accepted("journeys.reason is known", journeys, "reason", REASONS, "failure_id")
    none("dead journeys have a reason", journeys, no_reason, "dead without a reason", "failure_id")
    accepted("attempts.outcome is known", tried, "outcome", OUTCOMES, *delivery)
    none("no attempt was early", tried, F.col("lateness_ms") < 0, "attempts that began before they were due",
         *delivery, "lateness_ms")
    none("no hand-off is there twice", journeys, F.col("copies") > 0, "records that were handed off more than once",
         "failure_id", "copies", severity=WARN)
    none("every attempt is archived", journeys, F.col("missing") > 0, missing,
         "failure_id", "missing", severity=WARN)
    none("nothing was lost before it was archived", gaps, F.lit(True), "ranges of offsets that were never read",
         "topic", "partition", "from_offset", "to_offset", "reason")
    none("ledger: what workers received adds up", progress, F.col("received") != counted,
         "ranges whose received is not first_try_ok + failed + skipped", *place, "from_offset", "to_offset")
    none("ledger: what failed has left a trace", ledger, F.col("lost") > 0,
         "partitions in which more records failed than have a journey", *place, "lost")
    none("ledger: no trace without a failure", ledger, extra,
         "partitions in which more records have a journey than failed", *place, "extra")
    none("ledger: workers counted without holes", ledger, F.col("gaps") > 0, holes, *place, "gaps", severity=WARN)
    none("ledger: workers counted nothing twice", ledger, F.col("overlaps") > 0,
         "partitions with offsets that two progress events cover", *place, "overlaps", severity=WARN)
    # fmt: on
    return checks


def judge(checks: Sequence[Check]) -> list[Verdict]:
    """Count the rows that fail, in one Spark job; return one verdict for each check, in their order."""
    failing = [check.rows.select(F.lit(number).alias("number"), "example") for number, check in enumerate(checks)]
    found = (
        reduce(DataFrame.unionByName, failing)
        .groupBy("number")
        .agg(F.count(F.lit(1)).alias("failures"), F.max_by("example", "example", EXAMPLES).alias("examples"))
    )
    by_number = {row["number"]: row for row in found.collect()}
    verdicts = []
    for number, check in enumerate(checks):
        row = by_number.get(number)
        failures, examples = (0, ()) if row is None else (row["failures"], tuple(reversed(row["examples"])))
        text = check.text if row else "holds"
        verdicts.append(Verdict(check.name, check.severity, failures, text, examples))
    return verdicts


def known_offsets(forgotten: Sequence[str]) -> Verdict:
    """Judge whether Kafka has the group's offsets; it forgets those of a group that was away for long."""
    text = (
        "partitions of which Kafka has no committed offset any more: counted as far as the archive tells"
        if forgotten
        else "holds"
    )
    return Verdict("ledger: the group's offsets are known", WARN, len(forgotten), text, tuple(forgotten[:EXAMPLES]))


def freshness(archived_ms: int, *, now_ms: int, within_ms: int) -> Verdict:
    """Judge whether the archive is recent: ``archived_ms`` is when it was last brought up to date."""
    age_ms = max(0, now_ms - archived_ms)
    text = f"the archive was brought up to date {age_ms // 1_000} s ago; at most {within_ms // 1_000} s are allowed"
    return Verdict("the archive is fresh", ERROR, int(age_ms > within_ms), text, ())


def acknowledged(losses: Sequence[Mapping[str, Any]]) -> Verdict:
    """Report the losses that somebody has acknowledged: they fail nothing, and stay visible."""
    shown = [
        f"{row['gap']} {row['topic']} {row['partition']}: {row['note']}" for row in losses if row["acknowledged_ms"]
    ]
    text = "losses that were acknowledged" if shown else "holds"
    return Verdict("no loss is only acknowledged", WARN, len(shown), text, tuple(shown[:EXAMPLES]))

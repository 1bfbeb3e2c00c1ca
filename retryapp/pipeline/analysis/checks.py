"""What must hold of the tables: each check is a frame of the rows that fail it, and all are counted in one job.

In the manner of dbt's tests: unique, not null, accepted values, freshness, and the ledger's balance. A check of
severity ``error`` that fails makes the command end with 1; ``warn`` is told only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

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
    """One thing that must hold."""

    name: str
    severity: str
    text: str
    """What is wrong where it fails."""
    rows: DataFrame
    """The rows that fail: ``example`` string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check found."""

    name: str
    severity: str
    failures: int
    """Rows that fail."""
    text: str
    examples: tuple[str, ...]

    @property
    def is_error(self) -> bool:
        """Tell whether the command must end with 1."""
        return self.severity == ERROR and self.failures > 0


def unique(name: str, frame: DataFrame, *columns: str, severity: str = ERROR) -> Check:
    """No two rows agree in these columns."""
    twice = frame.groupBy(*columns).count().where(F.col("count") > 1)
    return Check(name, severity, f"rows that share {', '.join(columns)}", twice.select(_example(*columns)))


def not_null(name: str, frame: DataFrame, column: str, *shown: str, severity: str = ERROR) -> Check:
    """A column has a value everywhere."""
    return Check(name, severity, f"rows without {column}", frame.where(F.col(column).isNull()).select(_example(*shown)))


def accepted(
    name: str, frame: DataFrame, column: str, values: Sequence[str], *shown: str, severity: str = ERROR
) -> Check:
    """A column has one of these values, or null."""
    other = frame.where(F.col(column).isNotNull() & ~F.col(column).isin(*values))
    return Check(
        name, severity, f"rows whose {column} is none of {', '.join(values)}", other.select(_example(*shown, column))
    )


def none_where(name: str, frame: DataFrame, condition: Column, text: str, *shown: str, severity: str = ERROR) -> Check:
    """No row meets a condition."""
    return Check(name, severity, text, frame.where(condition).select(_example(*shown)))


def _example(*columns: str) -> Column:
    return F.concat_ws(" ", *(F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in columns)).alias(
        "example"
    )


def all_checks(
    records: DataFrame,
    journeys: DataFrame,
    progress: DataFrame,
    ledger: DataFrame,
    gaps: DataFrame,
) -> list[Check]:
    """Return every check that the tables alone can answer.

    Args:
        records: the archive's ``records``, of the groups that are looked at.
        journeys: the columns of ``schemas.JOURNEYS``.
        progress: the columns of ``schemas.PROGRESS``.
        ledger: the columns of ``schemas.LEDGER``.
        gaps: the archive's ``gaps``, of the topics of these groups.
    """
    place = ("group", "main", "partition")
    where = ("topic", "partition", "offset")
    tried = attempts_of(journeys).select("failure_id", "at.*")
    is_dead = F.col("fate") == "dead"
    attempt = ("failure_id", "replays", "attempt")
    counted = F.col("first_try_ok") + F.col("failed") + F.col("skipped")
    return [
        unique("records are there once", records, "cluster_id", "topic_id", "partition", "offset"),
        none_where(
            "records can be read",
            records,
            F.col("unreadable").isNotNull(),
            "records in quarantine: nothing tells whose they are",
            *where,
            "unreadable",
            severity=WARN,
        ),
        unique("journeys.failure_id is unique", journeys, "failure_id"),
        not_null("journeys.fate is there", journeys, "fate", "failure_id"),
        accepted("journeys.fate is known", journeys, "fate", FATES, "failure_id"),
        accepted("journeys.reason is known", journeys, "reason", REASONS, "failure_id"),
        none_where(
            "dead journeys have a reason",
            journeys,
            is_dead & F.col("reason").isNull(),
            "dead without a reason",
            "failure_id",
        ),
        accepted("attempts.outcome is known", tried, "outcome", OUTCOMES, *attempt),
        none_where(
            "no attempt was early",
            tried,
            F.col("lateness_ms") < 0,
            "attempts that began before they were due",
            *attempt,
            "lateness_ms",
        ),
        none_where(
            "no hand-off is there twice",
            journeys,
            F.col("copies") > 0,
            "records with copies, as workers without transactions leave after a crash",
            "failure_id",
            "copies",
            severity=WARN,
        ),
        none_where(
            "every attempt is archived",
            journeys,
            F.col("missing") > 0,
            "records of which attempts are missing: they were deleted from their topic before the archive read them",
            "failure_id",
            "missing",
            severity=WARN,
        ),
        none_where(
            "nothing was lost before it was archived",
            gaps,
            F.lit(True),
            "ranges of offsets that nobody read",
            "topic",
            "partition",
            "from_offset",
            "to_offset",
            "reason",
        ),
        none_where(
            "ledger: what workers received adds up",
            progress,
            F.col("received") != counted,
            "ranges whose received is not first_try_ok + failed + skipped",
            *place,
            "from_offset",
            "to_offset",
        ),
        none_where(
            "ledger: what failed has left a trace",
            ledger,
            F.col("lost") > 0,
            "partitions in which more records failed than have a journey",
            *place,
            "lost",
        ),
        none_where(
            "ledger: no trace without a failure",
            ledger,
            (F.col("extra") > 0) & (F.col("overlaps") == 0),
            "partitions in which more records have a journey than failed",
            *place,
            "extra",
        ),
        none_where(
            "ledger: workers counted without holes",
            ledger,
            F.col("gaps") > 0,
            "partitions with offsets that no progress event covers: they were set by hand, or an event is missing",
            *place,
            "gaps",
            severity=WARN,
        ),
        none_where(
            "ledger: workers counted nothing twice",
            ledger,
            F.col("overlaps") > 0,
            "partitions with offsets that two progress events cover",
            *place,
            "overlaps",
            severity=WARN,
        ),
    ]


def judge(checks: Sequence[Check]) -> list[Verdict]:
    """Count what fails; one Spark job for all.

    Returns:
        One verdict for each check, in the order of the checks.
    """
    failing = [check.rows.select(F.lit(number).alias("number"), "example") for number, check in enumerate(checks)]
    found = (
        reduce(DataFrame.unionByName, failing)
        .groupBy("number")
        .agg(F.count(F.lit(1)).alias("failures"), F.max_by("example", "example", EXAMPLES).alias("examples"))
    )
    by_number = {row["number"]: row for row in found.collect()}
    return [
        Verdict(
            name=check.name,
            severity=check.severity,
            failures=by_number[number]["failures"] if number in by_number else 0,
            text=check.text if number in by_number else "holds",
            examples=tuple(reversed(by_number[number]["examples"])) if number in by_number else (),
        )
        for number, check in enumerate(checks)
    ]


def freshness(archived_ms: int | None, *, now_ms: int, within_ms: int) -> Verdict:
    """Judge whether the archive is recent.

    Args:
        archived_ms: when the last archive run that ended in order ended; None where there was none.
        now_ms: the time, epoch milliseconds.
        within_ms: how old it may be.
    """
    age_ms = None if archived_ms is None else max(0, now_ms - archived_ms)
    stale = age_ms is None or age_ms > within_ms
    said = "nothing was archived yet"
    if age_ms is not None:
        said = f"the archive was brought up to date {age_ms // 1_000} s ago"
    return Verdict(
        name="the archive is fresh",
        severity=ERROR,
        failures=int(stale),
        text=f"{said}; at most {within_ms // 1_000} s are allowed",
        examples=(),
    )

"""Checks on the tables: what must hold, with how many rows do not, and examples.

A failed check of severity ``error`` makes the command exit with 1; ``warn`` is only reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.core.classify import DeadReason
from retryapp.pipeline.analysis.reading import NEWER
from retryapp.pipeline.gaps import gap_text

ERROR: Final = "error"
WARN: Final = "warn"
EXAMPLES: Final = 5
HOLDS: Final = "holds"
NO_LOSS: Final = "nothing was lost before it was archived"
OLDER: Final = "the last analysis is older than the window of --since: run 'retryapp pipeline analyse'"
REASONS: Final = tuple(reason.value for reason in DeadReason)

Row = Mapping[str, Any]


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


@dataclass(frozen=True, slots=True)
class _Check:
    """One check of the rows of a frame; ``text`` says what is wrong."""

    name: str
    severity: str
    text: str
    wrong: Column
    shown: tuple[str, ...]


def of_readings(readings: DataFrame) -> tuple[list[Verdict], Row]:
    """Check what was read; return ``first_ms`` and ``last_ms`` too: when the broker took the first and last record."""
    place = ("topic", "found_partition", "found_offset")
    text = "records in quarantine: their failure ids are unknown"
    once = _Check("records are there once", ERROR, "places that have several records", F.col("times") > 1, place)
    read = _Check("records can be read", WARN, text, F.lit(True), (*place, "unreadable"))
    is_unread, is_newer = F.col("said.unreadable").isNotNull(), F.col("said.kind").startswith(NEWER)
    times, unread, newer = F.count(F.lit(1)), F.count_if(is_unread), F.count_if(is_newer)
    places = readings.groupBy("life", *place).agg(  # with a text it would be a sort
        times.alias("times"), unread.alias("unread"), newer.alias("newer"), F.max("timestamp_ms").alias("at_ms")
    )
    more = {"unread": F.sum("unread"), "newer": F.sum("newer"), "first_ms": F.min("at_ms"), "last_ms": F.max("at_ms")}
    found, sums = _judge(places, more, once)
    upgrade = "events of a newer retryapp, which are counted nowhere: upgrade this one" if sums["newer"] else HOLDS
    found.append(Verdict("events are of a known version", WARN, sums["newer"] or 0, upgrade, ()))
    if sums["unread"]:
        quarantine = readings.where(is_unread).select(*place, "said.unreadable")
        return [*found, *_judge(quarantine, {}, read)[0]], sums
    return [*found, verdict(read.name, WARN, text, ())], sums


def of_journeys(journeys: DataFrame) -> tuple[list[Verdict], Row]:
    """Check journeys; return their ``count`` too."""
    earliest = F.array_min("attempts.lateness_ms")
    place = F.array_position("attempts.lateness_ms", earliest)
    shown = journeys.withColumns({"lateness_ms": earliest, "delivery": F.get("attempts.delivery", place - 1)})
    # fmt: off
    return _judge(shown, {"count": F.count(F.lit(1))},
        _Check("journeys.reason is known", ERROR, f"rows whose reason is none of {', '.join(REASONS)}",
               F.col("fate").isin("dead", "discarded") & ~F.col("reason").isin(*REASONS), ("failure_id", "reason")),
        _Check("no attempt was early", ERROR, "records with attempts that began before they were due",
               F.col("lateness_ms") < 0, ("failure_id", "delivery", "lateness_ms")),
        _Check("no hand-off is there twice", WARN, "records that were handed off more than once",
               F.col("copies") > 0, ("failure_id", "copies")),
        _Check("every attempt is archived", WARN,
               "records with missing attempts: expired, or deleted from their topic before the archive read them",
               F.col("missing") > 0, ("failure_id", "missing")),
    )
    # fmt: on


def of_ledger(ledger: Sequence[Row], losses: Sequence[Row] = ()) -> list[Verdict]:
    """Check the partitions of the ledger; what is missing where there are ``losses`` fails ``of_losses`` alone."""
    place = ("group", "main", "partition")
    explained = [[loss.get(name) for name in place] for loss in losses]
    wrong = {
        column: [[row[name] for name in (*place, column)] for row in ledger if row[column] > 0]
        for column in ("lost", "extra", "gaps", "overlaps")
    }
    is_explained = wrong["lost"] and all(row[:-1] in explained for row in wrong["lost"])
    holes = "partitions with offsets that no progress event covers: they were set by hand, or an event is missing"
    found = (
        ("what failed has left a trace", WARN if is_explained else ERROR, "lost",
         "partitions in which more records failed than have a journey"),
        ("no trace without a failure", ERROR, "extra", "partitions in which more records have a journey than failed"),
        ("workers counted without holes", WARN, "gaps", holes),
        ("workers counted nothing twice", WARN, "overlaps", "partitions with offsets that two progress events cover"),
    )  # fmt: skip
    return [
        verdict(f"ledger: {name}", severity, text, [" ".join(map(str, row)) for row in wrong[column]])
        for name, severity, column, text in found
    ]


def of_losses(losses: Sequence[Row]) -> list[Verdict]:
    """Check the ranges that were never read: those that somebody has acknowledged fail nothing, and stay visible."""
    new = [f"{row['gap']} {gap_text(row)}" for row in losses if row["acknowledged_ms"] is None]
    known = [f"{row['gap']} {gap_text(row)}: {row['note']}" for row in losses if row["acknowledged_ms"]]
    return [
        verdict(NO_LOSS, ERROR, "ranges of offsets that were not read, or are in doubt", new),
        verdict("no loss is only acknowledged", WARN, "losses that were acknowledged", known),
    ]


def of_cut(forgotten: Sequence[str], gone: Sequence[str]) -> list[Verdict]:
    """Check the cut: Kafka forgets offsets of a group that was away for long, and main topics may have been deleted."""
    text = "partitions of which Kafka has no committed offset any more: taken from the changelog, or the topic's end"
    no_topic = "main topics that were deleted: what was received from them is not known, only what failed"
    return [
        verdict("ledger: the group's offsets are known", WARN, text, forgotten),
        verdict("ledger: main topics are there", WARN, no_topic, gone),
    ]


def of_age(analysed_ms: int, *, now_ms: int, within_ms: int, since_ms: int | None) -> list[Verdict]:
    """Check whether the analysis, and so the archive, is recent, and has anything of the window."""
    age_ms = max(0, now_ms - analysed_ms)
    text = f"the archive was brought up to date {age_ms // 1_000} s ago; at most {within_ms // 1_000} s are allowed"
    found = [Verdict("the archive is fresh", ERROR, int(age_ms > within_ms), text, ())]
    if since_ms is not None:
        found.append(Verdict("the window was analysed", WARN, int(analysed_ms < since_ms), OLDER, ()))
    return found


def verdict(name: str, severity: str, text: str, examples: Sequence[str]) -> Verdict:
    return Verdict(name, severity, len(examples), text if examples else HOLDS, tuple(examples[:EXAMPLES]))


def _judge(frame: DataFrame, more: Mapping[str, Column], *checks: _Check) -> tuple[list[Verdict], Row]:
    """Count the rows that fail, and more, in one pass; the first and the last of them are the examples."""
    sums = [column.alias(name) for name, column in more.items()]
    for number, check in enumerate(checks):
        shown = F.concat_ws(" ", *(F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in check.shown))
        example = F.when(check.wrong, shown)
        sums += [F.count_if(check.wrong).alias(f"n{number}")]
        sums += [F.min(example).alias(f"a{number}"), F.max(example).alias(f"z{number}")]
    (row,) = frame.agg(*sums).collect()
    found = []
    for number, check in enumerate(checks):
        failures = row[f"n{number}"]
        examples = tuple(dict.fromkeys((row[f"a{number}"], row[f"z{number}"]))) if failures else ()
        found.append(Verdict(check.name, check.severity, failures, check.text if failures else HOLDS, examples))
    return found, row.asDict()

"""The report as plain facts, ready for JSON: a headline, what to do, and the tables in short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from retryapp.pipeline.analysis.checks import freshness
from retryapp.pipeline.analysis.comparison import is_covered
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.errors import TableMissingError
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.report.todo import todo

FACTS_VERSION: Final = 1
SHOWN: Final = 20  # rows of each table that the report has; the tables have all
_WHOLE: Final = ("ledger", "funnel", "lateness", "cost", "retention", "checks")
_CUT_SHORT: Final = ("outages", "offenders")
_SUMS: Final = ("received", "done", "first_try_ok", "recovered", "pending", "dead", "lost")

Facts = dict[str, Any]


def collect(
    spark: SparkSession, lake: Lake, *, now_ms: int, within_ms: int, counted: Mapping[str, int] | None = None
) -> Facts:
    """Read the tables of the last run that ended in order; of the long ones ``SHOWN`` rows, counted in ``in_all``."""
    derived = Derived(spark, lake)
    state = derived.state()
    if state is None:
        raise TableMissingError(lake.uri)
    tables = {name: _rows(derived.read(name)) for name in _WHOLE}
    in_all = {}
    for name in _CUT_SHORT:
        found = _rows(derived.read(name))
        tables[name], in_all[name] = found[:SHOWN], len(found)
    in_all["deadly_keys"] = sum(row["dead"] > 1 for row in found)  # of the offenders, which come last
    causes = _rows(derived.read("causes"))
    worst = list(dict.fromkeys(row["fingerprint"] for row in causes))[:SHOWN]
    # all rows of these causes, one for each reason: another one says what waits
    tables["causes"], in_all["causes"] = [row for row in causes if row["fingerprint"] in worst], len(causes)
    timeline = derived.read("timeline").withColumn(
        "fingerprint", F.when(F.col("fingerprint").isin(*worst[:5]), F.col("fingerprint"))
    )
    by = ["fingerprint", "from_ms", "length_ms"]
    tables["timeline"] = _rows(timeline.groupBy(*by).agg(F.sum("failures").alias("failures")).orderBy(*by))
    fresh = asdict(freshness(state["ended_ms"], now_ms=now_ms, within_ms=within_ms))
    checks = [row for row in tables.pop("checks") if row["name"] != fresh["name"]]
    checks.append({**fresh, "examples": list(fresh["examples"])})
    head = {"version": FACTS_VERSION, "now_ms": now_ms, "analysed_ms": state["ended_ms"], "groups": state["groups"]}
    head["broker"] = state["broker"]
    return build({**head, "in_all": in_all, "checks": checks, **tables}, counted)


def build(tables: Mapping[str, Any], counted: Mapping[str, int] | None = None) -> Facts:
    """Add totals, the headline and what to do to the tables."""
    totals = {name: sum(row[name] for row in tables["ledger"]) for name in _SUMS}
    covered = all(is_covered(row) for row in tables["ledger"])
    if counted is not None and not covered:
        totals |= counted
    # what workers have not counted yet, or counted before the archive began, is with the journeys already
    for name in ("recovered", "dead"):
        totals[name] = max(totals[name], sum(row[name] for row in tables["cost"]))
    records = sum(row["records"] for row in tables["cost"])
    counted_by = "workers" if covered else "workers, with holes" if counted is None else "topics"
    facts: Facts = {**tables, "counted_by": counted_by, "totals": {**totals, "failed": records}}
    return {**facts, "headline": _headline(facts["totals"]), "todo": todo(facts)}


def _headline(totals: Mapping[str, int]) -> str:
    lost = f", {totals['lost']:,} lost" if totals["lost"] else ""
    return (
        f"{totals['failed']:,} records failed: {totals['recovered']:,} recovered, {totals['pending']:,} waiting, "
        f"{totals['dead']:,} dead{lost}"
    )


def _rows(frame: DataFrame) -> list[Facts]:
    return [row.asDict(recursive=True) for row in frame.collect()]

"""The facts of a report: totals, what to do, and the tables in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import functions as F

from retryapp.core.text import counted
from retryapp.pipeline.analysis import figures
from retryapp.pipeline.analysis.causes import SHOWN, causes, timeline
from retryapp.pipeline.analysis.checks import of_age
from retryapp.pipeline.analysis.counts import DAY_MS, is_covered, retention
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.analysis.outages import OTHERS, by_interval, of_counted_time, outages
from retryapp.pipeline.analysis.rollup import HOUR_MS
from retryapp.pipeline.analysis.schemas import DELAYS_TABLE, JOURNEYS_TABLE, ROLLUP_TABLE
from retryapp.pipeline.decisions import judged
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.report.todo import todo
from retryapp.pipeline.session import beside

FACTS_VERSION: Final = 3
DRAWN: Final = 5  # causes with a colour of their own
ATTEMPTS: Final = 100  # that a record may have in the funnel: a policy without an end has thousands
_SUMS: Final = ("received", "done", "first_try_ok", "recovered", "pending", "held", "dead", "discarded", "lost")
_MORE: Final = ("discarded", "superseded", "skipped")  # in the headline where there are any
_BESIDE: Final = ("held", "lost")  # the same; these have not failed

Facts = dict[str, Any]


def collect(lake: Lake, *, now_ms: int, within_ms: int, since_ms: int | None = None) -> Facts:
    """Read the result of the last run that ended in order; of long tables ``SHOWN`` rows, counted in ``in_all``.

    With ``since_ms``, figures of attempts are of those that ended since.
    """
    derived = Derived(lake)
    result = derived.last_result()
    run_id, bin_ms, begin_ms = result["run_id"], result["bin_ms"], _begin(since_ms, result["bin_ms"])

    def rest() -> tuple[list[Facts], list[Facts]]:
        late = derived.read(DELAYS_TABLE, run_id).where(F.col("bin_ms") >= (_begin(since_ms, HOUR_MS) or 0))
        lengths = figures.delays_of(late)
        kept_ms, lives = result["state"]["kept_ms"], result["state"]["lives"]
        return lengths, retention(derived.read(JOURNEYS_TABLE, run_id), kept_ms, lives, now_ms=now_ms)

    rollup = derived.read(ROLLUP_TABLE, run_id).cache()
    try:
        with beside(lake.spark, rest) as more:
            every = causes_of(lake, result, now_ms=now_ms, since_ms=since_ms)
            first = sorted(every, key=lambda row: row["change"] != "regressed")
            shown = list(dict.fromkeys(row["fingerprint"] for row in first))[:SHOWN]
            ways = all_ways = figures.ways(rollup)
            if begin_ms is not None:
                ways = figures.ways(rollup.where(F.col("bin_ms") >= begin_ms))
            attempts = by_interval(rollup, shown)
        lengths, letters = more.result()
    finally:
        rollup.unpersist()
    until_ms = result["analysed_ms"]
    from_ms = max(begin_ms or 0, result["began_ms"] - HOUR_MS)  # what a clock that was wrong dates before is not drawn
    firsts = [row for row in of_counted_time(attempts, result["ledger"], bin_ms=bin_ms) if row["is_first"]]
    bursts = outages(firsts, bin_ms=bin_ms, until_ms=until_ms)
    names = {row["fingerprint"]: row["template"] for row in every} | {OTHERS: OTHERS}
    for cause in (cause for row in bursts for cause in row["causes"]):
        cause["template"] = names.get(cause["fingerprint"], "")
    bursts = [row for row in bursts if since_ms is None or row["to_ms"] >= since_ms]
    age = of_age(until_ms, now_ms=now_ms, within_ms=within_ms, since_ms=since_ms)
    checks = [*result["checks"], *map(asdict, age)]
    funnel = figures.funnel(ways, is_window=since_ms is not None)
    tables = {
        "funnel": [row for row in funnel if row["attempt"] <= ATTEMPTS],
        "lateness": figures.lateness(lengths),
        "cost": figures.cost(ways, lengths),
        # all rows of these causes, one for each reason: another one says what waits
        "causes": [row for row in every if row["fingerprint"] in shown],
        "outages": bursts[:SHOWN],
        "timeline": timeline(attempts, shown[:DRAWN], bin_ms=bin_ms, begin_ms=from_ms, end_ms=until_ms + HOUR_MS),
        "retention": letters,
        "offenders": result["offenders"]["rows"],
        "in_all": {
            "causes": len(every), "outages": len(bursts), "funnel": len(funnel),
            "offenders": result["offenders"]["keys"], "deadly_keys": result["offenders"]["deadly"],
            "failures": sum(
                row["records"] for row in attempts if row["fingerprint"] and row["bin_ms"] >= (begin_ms or 0)
            ),
        },
    }  # fmt: skip
    head = {"version": FACTS_VERSION, "now_ms": now_ms, "since_ms": since_ms, "groups": result["state"]["groups"]}
    head["lake"] = lake.uri
    head |= {name: result[name] for name in ("analysed_ms", "broker", "client_config", "ledger")}
    return build({**head, **tables, "checks": checks}, figures.cost(all_ways, ()))


def _begin(since_ms: int | None, length_ms: int) -> int | None:
    """Return the beginning of the interval in which a window begins: else a short window would have none."""
    return None if since_ms is None else since_ms // length_ms * length_ms


def causes_of(lake: Lake, result: Mapping[str, Any], *, now_ms: int, since_ms: int | None = None) -> list[Facts]:
    """Return causes as of an analysis, with decisions and changes; without a window the last day's are new.

    Where all of the archive is of this time, nothing is new.
    """
    until_ms, begin_ms = result["analysed_ms"], _begin(since_ms, result["bin_ms"])
    rollup = Derived(lake).read(ROLLUP_TABLE, result["run_id"])
    found = causes(rollup, since_ms=begin_ms, until_ms=until_ms)
    if begin_ms is not None and result["began_ms"] > 2 * begin_ms - until_ms:
        for row in found:  # the archive has not all of the time before: fewer then does not say more now
            row["before"] = None if row["records"] > row["before"] else row["before"]
    new_ms = until_ms - DAY_MS if begin_ms is None else begin_ms
    return judged(lake, found, now_ms=now_ms, since_ms=new_ms if result["began_ms"] < new_ms else None)


def build(tables: Mapping[str, Any], cost: Sequence[Facts]) -> Facts:
    """Add totals, the headline and what to do to the tables; totals are of all time, with its ``cost``."""
    totals = {name: sum(row.get(name, 0) for row in tables["ledger"]) for name in _SUMS}
    covered = all(is_covered(row) for row in tables["ledger"])
    # what workers have not counted yet, or counted before the archive began, is with the journeys already, and so are
    # former lives of the main topic, of which there is no ledger
    for name in figures.FATES:
        totals[name] = max(totals.get(name, 0), sum(row[name] for row in cost))
    records = sum(row["records"] for row in cost)
    wrong_first = sorted(tables["ledger"], key=lambda row: not (row["lost"] or row["extra"] or row["gaps"]))
    facts: Facts = {
        **tables,
        "counted_by": "workers" if covered else "workers, with holes",
        "totals": {**totals, "failed": records},
        "ledger": wrong_first[:SHOWN],
        "in_all": {**tables["in_all"], "ledger": len(wrong_first)},
    }
    return {**facts, "headline": _headline(facts["totals"]), "todo": todo(facts)}


def by_name(rows: Sequence[Any], groups: Sequence[str]) -> list[Any]:
    """Return rows for people: where there are several groups, the name of a main topic begins with its group."""
    if len(groups) == 1:
        return list(rows)
    return [{**row, "main": f"{row['group']}: {row['main']}"} if "main" in row else row for row in rows]


def _headline(totals: Mapping[str, int]) -> str:
    more = [f", {totals[name]:,} {name}" for name in _MORE if totals[name]]
    more += [f"; {totals[name]:,} {name}" for name in _BESIDE if totals[name]]
    return (
        f"{counted(totals['failed'], 'record')} failed: {totals['recovered']:,} recovered, "
        f"{totals['pending']:,} waiting, {totals['dead']:,} dead{''.join(more)}"
    )

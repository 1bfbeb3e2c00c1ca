"""Figures of a window: recovery by attempt, lateness, and cost. Summed by Spark, put in order here."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate, groupby
from math import expm1
from operator import itemgetter
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.analysis.rollup import LATE, RECOVERY

MINUTE_MS: Final = 60_000
FATES: Final = ("recovered", "pending", "dead", "discarded", "superseded", "skipped")  # of records that failed
QUANTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}

Row = dict[str, Any]
_WAY: Final = ("group", "main", "replayed", "attempt", "tier", "outcome", "fate", "next_attempt", "next_tier")


def ways(rollup: DataFrame) -> list[Row]:
    """Return the rollup without causes and time: some rows for each attempt of each handler."""
    sums = (F.sum(name).alias(name) for name in ("attempts", "journeys", "handler_ms"))
    return [row.asDict() for row in rollup.groupBy(*_WAY).agg(*sums).collect()]


def funnel(found: Iterable[Row], *, is_window: bool = False) -> list[Row]:
    """Return how many records each attempt brought home, by group, main, replayed, attempt and tier.

    ``entered`` attempts ended: ``succeeded``, ``retried``, ``dead``, or without a fate here; ``waiting`` records wait.
    ``share`` is succeeded / entered, ``cumulative`` records done so far / records that entered attempt 1; None of a
    window, whose later attempts are of records that began before it.
    """
    counts: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in found:
        place = (row["group"], row["main"], row["replayed"])
        if row["attempt"] is not None:
            counts[*place, row["attempt"], row["tier"]][row["outcome"]] += row["attempts"]
        if row["next_attempt"] is not None:
            replayed = row["replayed"] or row["next_attempt"] <= (row["attempt"] or 0)  # and not tried since
            counts[*place[:2], replayed, row["next_attempt"], row["next_tier"]]["waiting"] += row["journeys"]
    rows = []
    for place, count in sorted(counts.items(), key=lambda item: (*item[0][:4], item[0][4] or "")):
        row = dict(zip(("group", "main", "replayed", "attempt", "tier"), place, strict=True))
        row |= {name: count[name] for name in ("succeeded", "retried", "dead", "waiting")}
        row["entered"] = row["succeeded"] + row["retried"] + row["dead"] + count["skipped"] + count["superseded"]
        rows.append(row)
    began, done = Counter[Any](), Counter[Any]()  # by handler; in one go: a policy without an end has many attempts
    for (*handler, attempt), tiers in groupby(rows, itemgetter("group", "main", "replayed", "attempt")):
        name, same = tuple(handler), list(tiers)
        began[name] += sum(row["entered"] for row in same) if attempt == 1 else 0
        done[name] += sum(row["succeeded"] for row in same)
        for row in same:
            row["share"] = _ratio(row["succeeded"], row["entered"])
            row["cumulative"] = None if is_window else _ratio(done[name], began[name])
    return rows


def cost(found: Iterable[Row], delays: Iterable[Row]) -> list[Row]:
    """Return what recovery costs by group and main, as lower bounds: repeated runs of one attempt are not seen here."""
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in found:
        fate = row["fate"]
        if fate is None:
            continue
        count = sums[row["group"], row["main"]]
        count.update(records=row["journeys"], attempts=row["attempts"], handler_ms=row["handler_ms"])
        count["recovered" if fate == "done" else fate] += row["journeys"]
        if fate == "dead":
            count.update(attempts_on_dead=row["attempts"], handler_ms_on_dead=row["handler_ms"])
    waits = quantiles(row for row in delays if row["kind"] == RECOVERY)
    names = ("records", *FATES, "attempts", "handler_ms", "attempts_on_dead", "handler_ms_on_dead")
    rows = []
    for (group, main), count in sorted(sums.items()):
        row = {"group": group, "main": main, **{name: count[name] for name in names}}
        wait = waits.get((group, main, None), {})
        row["attempts_per_recovered"] = _ratio(row["attempts"], row["recovered"])
        row["minutes_per_recovered"] = _ratio(row["handler_ms"] / MINUTE_MS, row["recovered"])
        rows.append(row | {"wait_p50_ms": wait.get("p50_ms"), "wait_p90_ms": wait.get("p90_ms")})
    return rows


def delays_of(delays: DataFrame) -> list[Row]:
    """Return the table of delays without time."""
    summed = delays.groupBy("group", "main", "kind", "tier", "bucket")
    found = summed.agg(F.sum("attempts").alias("attempts"), F.max("max_ms").alias("max_ms"))
    return [row.asDict() for row in found.collect()]


def lateness(delays: Iterable[Row]) -> list[Row]:
    """Return how late attempts began, by group, main and tier, and with tier None in all."""
    late = [row for row in delays if row["kind"] == LATE]
    of_tiers = (row for row in late if row["tier"] is not None)
    found = quantiles([*of_tiers, *({**row, "tier": None} for row in late)])
    rows = [{"group": group, "main": main, "tier": tier, **each} for (group, main, tier), each in found.items()]
    return sorted(rows, key=lambda row: (row["group"], row["main"], row["tier"] or ""))


def quantiles(delays: Iterable[Row]) -> dict[tuple[str, str, str | None], Row]:
    """Return ``attempts``, quantiles (1 % exact), ``max_ms`` and ``early`` by group, main and tier."""
    buckets: dict[tuple[str, str, str | None], Counter[int]] = defaultdict(Counter)
    longest: dict[tuple[str, str, str | None], int] = {}
    for row in delays:
        place = (row["group"], row["main"], row["tier"])
        buckets[place][-1 if row["bucket"] is None else row["bucket"]] += row["attempts"]
        longest[place] = max(longest.get(place, row["max_ms"]), row["max_ms"])
    found = {}
    for place, counted in buckets.items():
        lengths, most = sorted(counted), longest[place]
        sums = list(accumulate(map(counted.__getitem__, lengths)))
        known = {
            name: min(most, length_of(lengths[bisect_left(sums, share * sums[-1])]))
            for name, share in QUANTILES.items()
        }
        found[place] = {"attempts": sums[-1], **known, "max_ms": most, "early": counted[-1]}
    return found


def length_of(bucket: int) -> int:
    """Return the length in milliseconds that a bucket stands for; see ``rollup.bucket_of``.

    >>> [length_of(bucket) for bucket in (-1, 0, 69, 110, 461, 691)]
    [0, 0, 1, 2, 99, 1001]
    """
    return max(0, round(expm1(bucket / 100)))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None

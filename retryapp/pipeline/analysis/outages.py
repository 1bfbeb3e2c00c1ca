"""Outages: when a handler's first deliveries failed far more often than they had before.

Its ratio of failed first deliveries is compared with that of the calm intervals before. So an outage is found however
long it lasts and however many causes it has, and what always fails is none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.analysis.rollup import LENGTHS_MS

LEAST_FAILURES: Final = 10  # fewer are no outage
LEAST_IN_ONE: Final = 5  # fewer in one interval do not make it part of one
HISTORY: Final = 60  # calm intervals to compare with
LEAST_HISTORY: Final = 3  # with fewer before it, the calmer half of all intervals is taken
LEAST_STEP: Final = 0.2  # by which the ratio rises at least
SIGMAS: Final = 4.0  # and by so many standard deviations of the usual ratio
GAP: Final = 2  # calm intervals that end an outage
USUAL_COUNT: Final = 20  # first deliveries that an interval should have; with fewer a ratio says little
LONGEST_MS: Final = 900_000  # longest interval
CAUSES: Final = 3
OTHERS: Final = "others"
_bin: Final = itemgetter("bin_ms")

Row = dict[str, Any]


class Interval(NamedTuple):
    """First deliveries of one interval."""

    begin_ms: int
    ok: int
    failed: int


def by_interval(rollup: DataFrame, named: Collection[str]) -> list[Row]:
    """Return attempts that failed or were the first, by group, main, interval, ``is_first`` and cause.

    The cause is None where they succeeded, and `OTHERS` where it is none of ``named``.
    """
    known = F.when(F.col("fingerprint").isin(*named), F.col("fingerprint"))
    cause = known.when(F.col("fingerprint").isNotNull(), OTHERS).alias("fingerprint")
    rows = rollup.where(F.col("is_first") | F.col("fingerprint").isNotNull())
    sums = rows.groupBy("group", "main", "bin_ms", "is_first", cause).agg(
        F.sum("attempts").alias("records"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        F.max_by("error_type", "last_ms").alias("error_type"),
    )
    return [row.asDict() for row in sums.collect()]


def of_counted_time(rows: Iterable[Row], ledger: Iterable[Row], *, bin_ms: int) -> list[Row]:
    """Leave out first deliveries of the time before a handler's first counted range: of it only failures are known.

    ``rows`` are those of ``by_interval``.
    """
    begins_ms: dict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    for row in ledger:
        if row["from_ms"] is not None:
            handler = row["group"], row["main"]
            begins_ms[handler] = min(begins_ms[handler], row["from_ms"])
    return [row for row in rows if begins_ms[row["group"], row["main"]] < row["bin_ms"] + bin_ms]


def outages(rows: Iterable[Row], *, bin_ms: int, until_ms: int) -> list[Row]:
    """Return the outages of all handlers, the newest first.

    ``rows`` are those of ``of_counted_time`` that were the first. Each outage has ``from_ms`` and ``to_ms`` (end of its
    first and last failure), ``records`` that failed, their ``share`` of the first deliveries, the share that is
    ``usual``, ``is_over`` (calm intervals followed, or nothing for ``LONGEST_MS`` before ``until_ms``) and its worst
    ``causes``.
    """
    handlers: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        handlers[row["group"], row["main"]].append(row)
    found = []
    for (group, main), ours in handlers.items():
        ours.sort(key=_bin)
        length_ms = _length(ours, bin_ms)
        for hot, usual, is_followed in _islands(_intervals(ours, length_ms), length_ms):
            if sum(each.failed for each in hot) < LEAST_FAILURES:
                continue
            begin_ms, end_ms = hot[0].begin_ms, hot[-1].begin_ms + length_ms
            inside = ours[bisect_left(ours, begin_ms, key=_bin) : bisect_left(ours, end_ms, key=_bin)]
            bad = [row for row in inside if row["fingerprint"]]
            failed, to_ms = sum(row["records"] for row in bad), max(row["last_ms"] for row in bad)
            found.append(
                {
                    "group": group, "main": main, "from_ms": min(row["first_ms"] for row in bad), "to_ms": to_ms,
                    "records": failed, "share": failed / sum(row["records"] for row in inside), "usual": usual,
                    "is_over": is_followed or until_ms - to_ms > LONGEST_MS, "causes": _causes(bad),
                }
            )  # fmt: skip
    return sorted(found, key=lambda row: (-row["to_ms"], row["group"], row["main"]))


def _causes(failed: Sequence[Row]) -> list[Row]:
    counted: dict[str, Row] = {}
    for row in failed:
        cause = counted.setdefault(row["fingerprint"], {**row, "records": 0})
        cause["records"] += row["records"]
    worst = sorted(counted.values(), key=lambda row: (-row["records"], row["fingerprint"]))[:CAUSES]
    return [{name: row[name] for name in ("fingerprint", "error_type", "records")} for row in worst]


def _length(rows: Sequence[Row], bin_ms: int) -> int:
    """Return the shortest interval with ``USUAL_COUNT`` first deliveries on average."""
    total, bins = sum(row["records"] for row in rows), len({row["bin_ms"] for row in rows})
    wanted_ms = min(bin_ms * USUAL_COUNT * bins / max(1, total), LONGEST_MS)
    return next(length for length in LENGTHS_MS if length >= max(bin_ms, wanted_ms))


def _intervals(rows: Sequence[Row], length_ms: int) -> list[Interval]:
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        counts[row["bin_ms"] - row["bin_ms"] % length_ms][row["fingerprint"] is not None] += row["records"]
    return [Interval(begin_ms, ok, failed) for begin_ms, (ok, failed) in sorted(counts.items())]


def _islands(intervals: Sequence[Interval], length_ms: int) -> Iterable[tuple[list[Interval], float, bool]]:
    """Yield the intervals of what may be an outage, the usual ratio before it, and whether calm ones followed.

    Nothing for ``LONGEST_MS`` ends one too.
    """
    half = sorted(intervals, key=lambda each: _ratio([each]))[: (len(intervals) + 1) // 2]
    before = deque[Interval](maxlen=HISTORY)
    hot, usual, calm = list[Interval](), 0.0, list[Interval]()
    for each in intervals:
        is_followed = len(calm) > GAP
        if hot and (is_followed or each.begin_ms - (calm or hot)[-1].begin_ms > length_ms + LONGEST_MS):
            yield hot, usual, is_followed
            hot = []
        if not hot:
            before.extend(calm)
            calm = []
            usual = _ratio(before if len(before) >= LEAST_HISTORY else half)
        if _is_hot(each, usual):
            hot.append(each)
            calm = []
        else:
            calm.append(each)
    if hot:
        yield hot, usual, len(calm) > GAP


def _ratio(intervals: Iterable[Interval]) -> float:
    some = list(intervals)
    return sum(each.failed for each in some) / max(1, sum(each.ok + each.failed for each in some))


def _is_hot(interval: Interval, usual: float) -> bool:
    count = interval.ok + interval.failed
    noise = SIGMAS * math.sqrt(max(usual * (1 - usual), 1 / count) / count)
    return interval.failed >= LEAST_IN_ONE and interval.failed / count >= usual + max(LEAST_STEP, noise)

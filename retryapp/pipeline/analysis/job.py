"""The analyse job: cut, archive, derive, check. See the package's text."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from retryapp.pipeline.analysis import causes, checks, counts, figures
from retryapp.pipeline.analysis.checks import Verdict
from retryapp.pipeline.analysis.cuts import TakenCut
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, touched_ids, traces_of
from retryapp.pipeline.analysis.schemas import ANALYSIS_VERSION, CUT, JOURNEYS_TABLE
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.hold import ANALYSIS_HOLD, Holds
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.schemas import GAPS

JOB: Final = "analyse"
FRESH_MS: Final = 86_400_000
APPENDS: Final = frozenset(
    {
        "STREAMING UPDATE",
        "WRITE Append",
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "CREATE TABLE",
        "SET TBLPROPERTIES",
        "ADD COLUMNS",
    }
)
"""Operations on the archive's table that change no journey."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """The result of one run."""

    groups: tuple[str, ...]
    run_id: str
    full: bool  # all journeys were derived again
    touched: int
    journeys: int
    elapsed_ms: int
    verdicts: tuple[Verdict, ...]

    @property
    def is_sound(self) -> bool:
        """Tell whether no check of severity error failed."""
        return not any(verdict.is_error for verdict in self.verdicts)


class Analysis:
    """Runs the job on one lake, for the groups that it is given."""

    def __init__(self, spark: SparkSession, lake: Lake, *, now_ms: Callable[[], int]) -> None:
        self._spark = spark
        self._gaps = Gaps(Facts(spark, lake))
        self._derived = Derived(spark, lake)
        self._now_ms = now_ms
        self._holds = Holds(spark, lake)

    def hold(self) -> AbstractContextManager[object]:
        """Keep other analyses from writing to the lake while the body runs: cut, archive and run belong together."""
        return self._holds.take(JOB, ANALYSIS_HOLD)

    def run(self, taken: Sequence[TakenCut], *, broker: str, full: bool = False) -> Analysed:
        """Make all tables, from cuts that were all taken before the archive runs that have just ended."""
        began_ms, run_id = self._now_ms(), uuid.uuid4().hex[:12]
        groups = tuple(sorted(cut.mains.group for cut in taken))
        table, version = self._derived.records()
        records = table.where(F.col("group").isin(*groups))
        rows, forgotten = self._cut(taken, records)
        cut = self._spark.createDataFrame(rows, CUT).cache()
        state = self._state(taken, rows, records, version)
        former = None if full else self._derived.state()
        if former is not None and not self._can_go_on(former, state):
            former = None
        traces = traces_of(records)
        if former is not None:
            before = self._spark.createDataFrame([tuple(row) for row in former["cut"]], CUT)
            fresh_traces = traces_of(self._behind(records, former["positions"]))
            touched = touched_ids(traces, fresh_traces, cut=cut, former=before)
            traces = traces.join(touched, on="failure_id", how="left_semi").select(*traces.columns)
        fresh = journeys_of(before_cut(traces, cut))
        self._derived.forget_state()  # until the end of this run its tables are of two moments
        touched_count = self._derived.put_journeys(fresh, whole=former is None)
        journeys = self._derived.read(JOURNEYS_TABLE).cache()
        try:
            count = journeys.count()  # before its readers, who come side by side
            verdicts = self._derive(taken, records, journeys, cut, checks.known_offsets(forgotten))
        finally:
            journeys.unpersist()
            cut.unpersist()
        self._derived.put_state({**state, "broker": broker, "ended_ms": self._now_ms(), "run_id": run_id})
        touched_count = count if touched_count is None else touched_count
        elapsed_ms = self._now_ms() - began_ms
        return Analysed(groups, run_id, former is None, touched_count, count, elapsed_ms, tuple(verdicts))

    def _cut(self, taken: Sequence[TakenCut], records: DataFrame) -> tuple[list[tuple[Any, ...]], list[str]]:
        """Return the rows of the cut, and the partitions whose offsets Kafka has forgotten.

        It does so when a group was away for a week. Its workers' counts say how far it had come; where these are gone,
        too (they are kept for a week, dead letters for longer), the last record that failed does.
        """
        rows = [row for each in taken for row in each.rows]
        if all(row[-1] is not None for row in rows):
            return rows, []
        at = F.struct("epoch", "offset")
        places = [F.col("group"), F.col("event.main").alias("main"), F.col("event.partition").alias("partition")]
        counted = records.where(F.col("event.kind") == "progress").groupBy(*places)
        said = counted.agg(F.max_by("event.to_offset", at).alias("reached")).collect()
        reached = {(row["group"], row["main"], row["partition"]): row["reached"] for row in said}
        failed = traces_of(records).groupBy("group", "main", "topic_id", "partition").agg(F.max("offset")).collect()
        traced = {tuple(row[:4]): row[4] + 1 for row in failed}
        known, forgotten = list[tuple[Any, ...]](), list[str]()
        for cluster_id, group, main, topic_id, number, offset in rows:
            if offset is None:
                offset = reached.get((group, main, number)) or traced.get((group, main, topic_id, number))
                forgotten += [] if offset is None else [f"{group} {main} {number}"]
            known.append((cluster_id, group, main, topic_id, number, offset or 0))
        return known, forgotten

    def _derive(
        self, taken: Sequence[TakenCut], records: DataFrame, journeys: DataFrame, cut: DataFrame, known: Verdict
    ) -> list[Verdict]:
        read = self._derived.read
        topics = [(name, length) for each in taken for name, length in each.retention_ms.items()]
        now_ms = self._now_ms()
        kept = self._spark.createDataFrame(topics, "topic string, retention_ms bigint")
        self._derived.put("progress", counts.progress_of(records, cut))
        progress = read("progress").cache()
        try:
            progress.count()
            self._derived.put_all(
                {
                    "ledger": lambda: counts.ledger(journeys, progress, cut),
                    "funnel": lambda: figures.funnel(journeys, progress),
                    "lateness": lambda: figures.lateness(journeys),
                    "cost": lambda: figures.cost(journeys),
                    "causes": lambda: causes.causes(journeys),
                    "outages": lambda: causes.outages(journeys),
                    "timeline": lambda: causes.timeline(journeys),
                    "offenders": lambda: causes.offenders(journeys),
                    "retention": lambda: counts.retention(journeys, kept, now_ms=now_ms),
                }
            )
            groups = {each.mains.group for each in taken}
            losses = [row for row in self._gaps.rows() if row.get("group") in groups or row["topic"] in dict(topics)]
            names = GAPS.fieldNames()
            new = [tuple(row.get(name) for name in names) for row in losses if row["acknowledged_ms"] is None]
            gaps = self._spark.createDataFrame(new, GAPS)
            found = checks.judge(checks.all_checks(records, journeys, progress, read("ledger"), gaps))
            found.append(checks.acknowledged(losses))
        finally:
            progress.unpersist()
        found.append(known)
        found.append(checks.freshness(now_ms, now_ms=now_ms, within_ms=FRESH_MS))  # the report asks again
        self._derived.put_rows("checks", [{**asdict(each), "examples": list(each.examples)} for each in found])
        return found

    def _behind(self, records: DataFrame, positions: Sequence[Sequence[Any]]) -> DataFrame:
        schema = "cluster_id string, topic_id string, partition int, next long"
        known = self._spark.createDataFrame([tuple(row) for row in positions], schema)
        joined = records.join(F.broadcast(known), on=["cluster_id", "topic_id", "partition"], how="left")
        return joined.where(F.col("next").isNull() | (F.col("offset") >= F.col("next"))).select(*records.columns)

    def _state(
        self, taken: Sequence[TakenCut], cut: Sequence[tuple[Any, ...]], records: DataFrame, version: int
    ) -> dict[str, Any]:
        positions = records.groupBy("cluster_id", "topic_id", "partition").agg((F.max("offset") + 1).alias("next"))
        return {
            "version": ANALYSIS_VERSION,
            "groups": sorted(each.mains.group for each in taken),
            "cut": [list(row) for row in cut],
            "positions": [list(row) for row in positions.orderBy("topic_id", "partition").collect()],
            "table_version": version,
        }

    def _can_go_on(self, former: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Tell whether journeys of the run before may stay: nothing but appends since, and no cut that moved back."""
        if any(former[name] != state[name] for name in ("version", "groups")):
            return False
        before = {tuple(row[:-1]): row[-1] for row in former["cut"]}
        now = {tuple(row[:-1]): row[-1] for row in state["cut"]}
        lives = {place[:-1] for place in before}
        if any(now.get(place, offset) < offset for place, offset in before.items()):
            return False
        if any(place[:-1] not in lives for place in now):  # a main topic that was re-created, or is new
            return False
        operations = self._derived.operations_between(former["table_version"], state["table_version"])
        return operations is not None and operations <= APPENDS

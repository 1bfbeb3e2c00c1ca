"""The analyse job: cut, archive, derive, check. See the package's text."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import functions as F

from retryapp.pipeline.analysis import checks, counts
from retryapp.pipeline.analysis.causes import offenders
from retryapp.pipeline.analysis.checks import Verdict
from retryapp.pipeline.analysis.cuts import TakenCut
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, traces_of
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.analysis.rollup import MOST_BINS, delays, fitting_length, rollup
from retryapp.pipeline.analysis.schemas import DELAYS_TABLE, JOURNEYS_TABLE, READINGS_TABLE, ROLLUP_TABLE
from retryapp.pipeline.erasures import Erasures
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.hold import ANALYSIS_HOLD, Holds
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.session import beside
from retryapp.pipeline.tables import Tables, place_of

JOB: Final = "analyse"
MOST_PIECES: Final = 50  # folders of readings, after which all records are read anew into one


@dataclass(frozen=True, slots=True)
class Analysed:
    """The result of one run."""

    groups: tuple[str, ...]
    run_id: str
    is_new: bool  # else the result of the run before stands: nothing was new
    journeys: int
    elapsed_ms: int
    verdicts: tuple[Verdict, ...]

    @property
    def is_sound(self) -> bool:
        return not any(verdict.is_error for verdict in self.verdicts)


class Analysis:
    """Runs the job on one lake, for the groups that it is given."""

    def __init__(self, lake: Lake, *, now_ms: Callable[[], int]) -> None:
        self._spark = lake.spark
        self._gaps = Gaps(lake)
        self._erasures = Erasures(lake)
        self._derived = Derived(lake)
        self._tables = Tables(lake)
        self._now_ms = now_ms
        self._holds = Holds(lake)

    def hold(self, **how: Any) -> AbstractContextManager[object]:
        """Keep other analyses away while the body cuts, archives and runs; ``how`` is as of ``Holds.take``."""
        return self._holds.take(JOB, ANALYSIS_HOLD, **how)

    def run(self, taken: Sequence[TakenCut], *, broker: str, client_config: str | None = None) -> Analysed:
        """Make all tables, from cuts that were all taken before the archive runs that have just ended.

        ``broker`` and ``client_config`` are for the commands that the report suggests.
        Where nothing is new since the run before, its result stands.
        """
        reached = {"broker": broker, "client_config": client_config}
        began_ms, run_id = self._now_ms(), uuid.uuid4().hex[:12]
        groups = tuple(sorted(cut.group for cut in taken))
        kept_ms = {topic: length for each in taken for topic, length in each.retention_ms.items()}
        losses = [row for row in self._gaps.rows() if row.get("group") in groups or row["topic"] in kept_ms]
        state = {
            "groups": list(groups), "cut": [list(row) for each in taken for row in each.rows], "kept_ms": kept_ms,
            "tallies": [list(row) for each in taken for row in each.tallies],
            "forgotten": [place for each in taken for place in each.forgotten],
            "lives": {topic: life for each in taken for topic, life in each.lives.items()},
            "losses": losses, "archive": place_of(next(self._tables.commits())),
        }  # fmt: skip
        former = self._derived.whole_result()
        facts = former if former is not None and former["state"] == state else None
        is_new = facts is None
        if facts is None:
            read = self._read(state, former, run_id)
            made = self._make(read, taken, losses, run_id)
            facts = {**made, "run_id": run_id, "state": state, "readings": read}
        ended_ms = self._now_ms()
        self._derived.put_result({**facts, **reached, "analysed_ms": ended_ms})
        verdicts = tuple(Verdict(**{**each, "examples": tuple(each["examples"])}) for each in facts["checks"])
        return Analysed(groups, facts["run_id"], is_new, facts["journeys"], ended_ms - began_ms, verdicts)

    def _read(self, state: Mapping[str, Any], former: Mapping[str, Any] | None, run_id: str) -> list[str]:
        """Read the records that the former run has not; return the folders with the readings of all.

        What was erased or expired since is in none of them: then all are read anew.
        """
        known, since = list[str](), None
        groups, archive = state["groups"], state["archive"]
        if former is not None and former["state"]["groups"] == groups and len(former["readings"]) < MOST_PIECES:
            known, since = former["readings"], former["state"]["archive"]
        files = self._tables.added_between(since, archive)
        if files == [] and known:
            return known
        records = self._tables.read_files(files) if files else self._tables.read(archive)
        piece = f"{READINGS_TABLE}-{run_id}"
        self._derived.put(READINGS_TABLE, readings_of(records.where(F.col("group").isin(*groups))), piece)
        return [piece] if files is None else [*known, piece]

    def _make(
        self, read: Sequence[str], taken: Sequence[TakenCut], losses: Sequence[Mapping[str, Any]], run_id: str
    ) -> dict[str, Any]:
        put, readings = self._derived.put, self._derived.read(READINGS_TABLE, *read)
        cut = [row for each in taken for row in each.rows]
        tallies = [row for each in taken for row in each.tallies]
        progress = counts.progress_of(readings, cut, tallies).cache()

        def rest() -> dict[str, Any]:
            put(DELAYS_TABLE, delays(journeys), run_id)
            erased_ms = max(self._erasures.reach().values(), default=-1)
            ledger = counts.ledger(journeys, progress, cut, erased_ms=erased_ms)
            return {"ledger": ledger, "offenders": offenders(journeys)}

        try:
            with beside(self._spark, partial(checks.of_readings, readings)) as checked:
                journeys = put(JOURNEYS_TABLE, journeys_of(before_cut(traces_of(readings), cut)), run_id)
            of_readings, arrived = checked.result()
            # by the broker's clock: one of a worker that was wrong would make all intervals months long
            began_ms, last_ms = arrived["first_ms"] or 0, arrived["last_ms"] or 0
            length_ms = fitting_length(last_ms - began_ms, MOST_BINS)
            with beside(self._spark, rest) as more:
                of_journeys, told = checks.of_journeys(journeys)
                put(ROLLUP_TABLE, rollup(journeys, progress, length_ms=length_ms), run_id)
            found = more.result()
        finally:
            progress.unpersist()
        verdicts = [
            *of_readings,
            *of_journeys,
            *checks.of_ledger(found["ledger"], losses),
            *checks.of_losses(losses),
            *checks.of_cut(
                [place for each in taken for place in each.forgotten],
                [f"{each.group} {main}" for each in taken for main in each.gone],
            ),
        ]
        facts = {"journeys": told["count"], "began_ms": began_ms, "bin_ms": length_ms}
        return {**facts, **found, "checks": list(map(asdict, verdicts))}

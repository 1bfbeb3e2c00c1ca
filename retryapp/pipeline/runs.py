"""The history of runs: a row when one begins, a row when it ends; the last one publishes the cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from retryapp.pipeline.tables import RUNS_TABLE, Tables

if TYPE_CHECKING:
    from retryapp.pipeline.sources import Sources


STARTED: Final = "started"
FINISHED: Final = "finished"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as its row has it."""

    run_id: str
    job: str
    cluster_id: str
    group: str
    checkpoint: str
    topic_ids: Mapping[str, str]
    """Topic → topic id; what a cut is said by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """What is known of the run before."""

    state: str
    checkpoint: str
    cut: Mapping[tuple[str, int], int]
    """Topic id and partition → next offset; of the last run that published one."""


class RunLog:
    """Reads and writes ``runs``."""

    def __init__(self, tables: Tables, now_ms: Callable[[], int]) -> None:
        """Args: tables: of the lake. now_ms: the time, epoch milliseconds."""
        self._tables = tables
        self._now_ms = now_ms

    def begin(self, run_id: str, job: str, sources: Sources, checkpoint: str) -> Run:
        """Say that a run begins."""
        run = Run(
            run_id=run_id,
            job=job,
            cluster_id=sources.cluster_id,
            group=sources.group,
            checkpoint=checkpoint,
            topic_ids={source.topic: source.topic_id for source in sources.topics},
        )
        self._append(run, STARTED, {})
        return run

    def end(
        self, run: Run, state: str, *, rows: int, cut: Mapping[tuple[str, int], int], detail: str | None = None
    ) -> None:
        """Say how a run ended.

        Args:
            run: which one.
            state: ``finished``, ``interrupted`` or ``failed``.
            rows: rows written.
            cut: topic and partition → next offset.
            detail: what else there is to know.
        """
        published = [
            (topic, run.topic_ids[topic], partition, offset) for (topic, partition), offset in sorted(cut.items())
        ]
        self._append(run, state, {"rows": rows, "cut": published, "detail": detail})

    def last(self, job: str, sources: Sources) -> LastRun | None:
        """Return how the last run of a job over the same group stands; None when there was none."""
        wanted = (F.col("job") == job) & (F.col("cluster_id") == sources.cluster_id) & (F.col("group") == sources.group)
        rows = self._tables.read(RUNS_TABLE).where(wanted).orderBy(F.desc("at_ms"), F.desc("rows")).limit(50).collect()
        if not rows:
            return None
        cut: Any = next((row["cut"] for row in rows if row["cut"] and row["state"] != FAILED), [])
        newest = rows[0]
        return LastRun(
            state=newest["state"],
            checkpoint=newest["checkpoint"],
            cut={(part["topic_id"], part["partition"]): part["offset"] for part in cut},
        )

    def _append(self, run: Run, state: str, more: Mapping[str, Any]) -> None:
        row = {
            "run_id": run.run_id,
            "job": run.job,
            "cluster_id": run.cluster_id,
            "group": run.group,
            "checkpoint": run.checkpoint,
            "state": state,
            "at_ms": self._now_ms(),
            "version": version("retryapp"),
            **more,
        }
        self._tables.append(RUNS_TABLE, [row])

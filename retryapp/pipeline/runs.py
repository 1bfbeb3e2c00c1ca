"""The history of runs: a fact when one begins, a fact when it ends; the last one publishes the cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from retryapp.pipeline.facts import Facts, fact_name
from retryapp.pipeline.tables import RUNS_TABLE

if TYPE_CHECKING:
    from retryapp.pipeline.sources import Sources

STARTED: Final = "started"
FINISHED: Final = "finished"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
REFUSED: Final = "refused"  # another run was at work; says nothing about the lake

_DIGITS: Final = 15


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as its fact has it."""

    run_id: str
    job: str
    cluster_id: str
    group: str
    checkpoint: str
    topic_ids: Mapping[str, str]  # topic → topic id; which a cut is written with


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """What is known of the run before."""

    state: str
    checkpoint: str
    cut: Mapping[tuple[str, int], int]  # topic id and partition → next offset, as published last


class RunLog:
    """Reads and writes ``runs``. Names sort by job, cluster, group, time, and a run's beginning before its end."""

    def __init__(self, facts: Facts, now_ms: Callable[[], int]) -> None:
        self._facts = facts
        self._now_ms = now_ms

    def begin(self, run_id: str, job: str, sources: Sources, checkpoint: str) -> Run:
        """Say that a run begins."""
        topic_ids = {source.topic: source.topic_id for source in sources.topics}
        run = Run(run_id, job, sources.cluster_id, sources.group, checkpoint, topic_ids)
        self._put(run, STARTED, {"rows": None, "cut": None, "detail": None})
        return run

    def end(
        self, run: Run, state: str, *, rows: int, cut: Mapping[tuple[str, int], int], detail: str | None = None
    ) -> None:
        """Say how a run ended."""
        published = [
            {"topic": topic, "topic_id": run.topic_ids[topic], "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(cut.items())
        ]
        self._put(run, state, {"rows": rows, "cut": published, "detail": detail})

    def last(self, job: str, sources: Sources) -> LastRun | None:
        """Return the state of the last run of a job over the same group; None when there was none."""
        prefix = fact_name(_prefix(job, sources.cluster_id, sources.group))
        newest: dict[str, Any] | None = None
        refused: set[str] = set()
        for name in reversed([name for name in self._facts.names(RUNS_TABLE) if name.startswith(prefix)]):
            row = self._facts.get(RUNS_TABLE, name)
            if not row:
                continue  # half written: its beginning still says that it did not end
            if row["state"] == REFUSED:
                refused.add(row["run_id"])
            if row["run_id"] in refused:
                continue
            newest = newest or row
            if row["state"] in {FINISHED, INTERRUPTED}:
                cut = {(part["topic_id"], part["partition"]): part["offset"] for part in row["cut"]}
                return LastRun(state=newest["state"], checkpoint=newest["checkpoint"], cut=cut)
        return None if newest is None else LastRun(state=newest["state"], checkpoint=newest["checkpoint"], cut={})

    def _put(self, run: Run, state: str, more: Mapping[str, Any]) -> None:
        at_ms = self._now_ms()
        row = {name: getattr(run, name) for name in ("run_id", "job", "cluster_id", "group", "checkpoint")}
        row |= {"state": state, "at_ms": at_ms, "version": version("retryapp"), **more}
        prefix = _prefix(run.job, run.cluster_id, run.group)
        name = f"{prefix}{at_ms:0{_DIGITS}d} {int(state != STARTED)} {run.run_id} {state}"
        self._facts.put(RUNS_TABLE, name, row)


def _prefix(job: str, cluster_id: str, group: str) -> str:
    return f"{job} {cluster_id} {group} "

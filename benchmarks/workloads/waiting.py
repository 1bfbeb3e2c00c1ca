"""Records that wait for a day: what several workloads begin with."""

from __future__ import annotations

from benchmarks.records import Wanted
from benchmarks.stage import Stage
from benchmarks.worker import WorkerProcess

DAY_MS = 86_400_000
ALWAYS = 9
"""Failures of a record that never succeeds."""


def park(stage: Stage, group: str, topic: str, count: int, failures: int = ALWAYS) -> None:
    """Publish records that wait for a day (with no failures: they succeed); let a worker of ours take them in."""
    with stage.ledger(0), stage.worker("ours", stage.spec(group, topic)) as worker:
        park_more(stage, worker, group, topic, range(count), failures)


def park_more(
    stage: Stage, worker: WorkerProcess, group: str, topic: str, numbers: range, failures: int = ALWAYS
) -> None:
    """Publish, and wait until the group has committed the main topic: all rows are in the pending table."""
    stage.fill(topic, (Wanted(n, failures, DAY_MS) for n in numbers))
    stage.wait(worker, lambda: stage.lag(group, topic) == 0, "all were in the pending table", 0.25)

"""Records that wait for a day: what several workloads begin with."""

from __future__ import annotations

from benchmarks.records import Wanted
from benchmarks.stage import Stage
from benchmarks.worker import WorkerProcess

DAY_MS = 86_400_000
ALWAYS = 9
"""Failures of a record that never succeeds."""


def park(stage: Stage, group: str, topic: str, count: int, *, fail: bool = True) -> None:
    """Publish records and let a worker of ours take them in; with ``fail`` all of them wait for a day."""
    ledger = stage.ledger(0)
    stage.fill(topic, (Wanted(n, ALWAYS if fail else 0, DAY_MS) for n in range(count)))
    with stage.worker("ours", stage.spec(group, topic)) as worker:
        stage.wait(worker, lambda: ledger.deliveries >= count, f"{count} records were delivered once")
        wait_parked(stage, worker, group, topic)
    ledger.close()


def wait_parked(stage: Stage, worker: WorkerProcess, group: str, topic: str) -> None:
    """Wait until the group has committed all of the main and the retry topic: what failed is in the pending table."""
    retry = f"{group}.{topic}.retry"
    stage.wait(worker, lambda: stage.lag(group, topic) == 0, "the main topic was committed", 0.25)
    stage.wait(worker, lambda: stage.lag(group, retry, markers=1) == 0, "all were in the pending table", 0.25)

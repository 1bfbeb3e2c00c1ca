"""Many partitions: how long a worker of several handlers takes until all its lanes are open, and what it weighs."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.results import Result, figure
from benchmarks.runs import Run, attempt, each, repeated
from benchmarks.stage import Stage, cleaned
from benchmarks.workloads.lanes import opened

TITLE = "Many partitions"
OPTIONS = ("repeats", "many_partitions", "many_handlers")
_IDLE_S = 10.0


def run(stage: Stage) -> Result:
    """Start the worker once to create the topics, then as often as is counted."""
    plan = stage.plan
    group = stage.name("many")
    with cleaned(stage, group):
        topics = [stage.make_topic(f"{group}-main{n}", plan.many_partitions) for n in range(plan.many_handlers)]
        start = partial(_start, stage, group, topics)
        attempt(stage, "warm-up, creates the topics", start)
        runs = repeated(stage, "start", start)
    samples = {name: each(runs, name) for name in ("start", "acquire", "rss", "idle")}
    return Result(
        figures=[
            figure("process start to all lanes open", "s", samples["start"]),
            figure("first lane begins to open to all open", "s", samples["acquire"]),
            figure("RSS", "MiB", samples["rss"]),
            figure("CPU when idle", "% of a core", samples["idle"]),
        ],
        notes=[
            f"{plan.many_handlers} handlers of {plan.many_partitions} partitions: "
            f"{plan.many_handlers * plan.many_partitions} lanes in one worker; the topics exist, nothing waits. Times "
            "by the worker's log."
        ],
        samples=samples,
    )


def _start(stage: Stage, group: str, topics: list[str]) -> Run:
    plan = stage.plan
    lanes = plan.many_partitions * plan.many_handlers
    spec = stage.spec(group, *topics, partitions=plan.many_partitions)
    with stage.ledger(0), stage.worker("ours", spec, level="info") as worker:
        stage.wait(worker, lambda: opened(worker.log).count >= lanes, f"{lanes} lanes were open", 0.5)
        before = worker.used()
        time.sleep(_IDLE_S)
        used, rss = worker.used() - before, worker.rss
    log = opened(worker.log)
    return Run(
        {
            "start": log.last_open_s - worker.started_s,
            "acquire": log.opening_s,
            "rss": rss / 2**20,
            "idle": used.worker_s / used.wall_s * 100,
        }
    )

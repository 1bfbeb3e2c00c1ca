"""Many partitions: how long a worker of several handlers takes until all its lanes are open, and what it weighs."""

from __future__ import annotations

import time

from benchmarks.results import Result, figure
from benchmarks.runs import Say
from benchmarks.stage import Stage, cleaned
from benchmarks.workloads.lanes import Lanes, opened

NAME = "many"
TITLE = "Many partitions"
OPTIONS = ("repeats", "many_partitions", "many_handlers")
_IDLE_S = 10.0


def run(stage: Stage, say: Say) -> Result:
    """Start the worker once to make the topics, then as often as is counted."""
    plan = stage.plan
    wanted = plan.many_partitions * plan.many_handlers
    group = stage.name(NAME)
    found: dict[str, list[float | None]] = {name: [] for name in ("start", "acquire", "rss", "idle")}
    with cleaned(stage, group):
        topics = [stage.make_topic(f"{group}-main{n}", plan.many_partitions) for n in range(plan.many_handlers)]
        for number in range(-1, plan.repeats):
            turn = "warm-up, makes the topics" if number < 0 else f"{number + 1}/{plan.repeats}"
            one = _start(stage, group, topics, wanted)
            say(f"{NAME} {turn}: " + ", ".join(f"{name} {value:,.1f}" for name, value in one.items()))
            if number >= 0:
                for name, value in one.items():
                    found[name].append(value)
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure("process start to all lanes open", "s", found["start"]),
            figure("first lane begins to open to all open", "s", found["acquire"]),
            figure("RSS", "MiB", found["rss"]),
            figure("CPU when idle", "% of a core", found["idle"]),
        ],
        notes=[
            f"{plan.many_handlers} handlers of {plan.many_partitions} partitions: {wanted} lanes in one worker; the "
            "topics exist, nothing waits. Times by the worker's log."
        ],
        samples=found,
    )


def _start(stage: Stage, group: str, topics: list[str], wanted: int) -> dict[str, float]:
    ledger = stage.ledger(0)
    spec = stage.spec(group, *topics, partitions=stage.plan.many_partitions)
    lanes = Lanes(0, 0.0, 0.0)
    with stage.worker("ours", spec, level="info") as worker:

        def all_open() -> bool:
            nonlocal lanes
            lanes = opened(worker.text)
            return lanes.count >= wanted

        stage.wait(worker, all_open, f"{wanted} lanes were open", 0.5)
        before = worker.used()
        time.sleep(_IDLE_S)
        after = worker.used()
        rss = worker.rss
    ledger.close()
    return {
        "start": lanes.last_open_s - worker.started_ns / 1e9,
        "acquire": lanes.opening_s,
        "rss": rss / 2**20,
        "idle": (after.worker_cpu_s - before.worker_cpu_s) / ((after.at_ns - before.at_ns) / 1e9) * 100,
    }

"""Accuracy: a steady flow of records that fail once, with mixed delays; how late each comes back."""

from __future__ import annotations

import random
import time
from functools import partial

from benchmarks.records import Wanted
from benchmarks.results import Result, figure
from benchmarks.runs import Run, each, failing_once, repeated, void
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import percentile

TITLE = "Lateness under a steady flow"
OPTIONS = ("repeats", "lateness_rate", "lateness_s", "lateness_longest_s")
_SHORTEST_MS = 1_000
_SEED = 20130101


def run(stage: Stage) -> Result:
    """Run the flow as often as is counted."""
    plan = stage.plan
    runs = repeated(stage, "flow", partial(_flow, stage))
    return Result(
        figures=[
            figure("p50", "ms", each(runs, "p50"), most=6.0),
            figure("p99", "ms", each(runs, "p99"), most=20.0),
            figure("p99.9", "ms", each(runs, "p99.9")),
            figure("largest", "ms", each(runs, "largest")),
            figure("CPU", "% of a core", each(runs, "CPU")),
        ],
        notes=[
            f"Runs with a record lost, early or delivered too often: {void(runs)}.",
            f"{plan.lateness_rate:,} records a second for {plan.lateness_s} s, each fails once and waits 1 to "
            f"{plan.lateness_longest_s} s (uniform, seeded). Lateness: start of the redelivery minus due time, which "
            "is failure plus wait, by the handler's own clock. Counted: what was due after the longest wait had "
            "passed and before the flow ended.",
        ],
        samples={"p99": each(runs, "p99")},
    )


def _flow(stage: Stage) -> Run:
    plan = stage.plan
    warm, count = plan.partitions * 25, plan.lateness_rate * plan.lateness_s
    rng = random.Random(_SEED)  # noqa: S311 - the same delays in every run, no secret
    waits = {warm + n: rng.randint(_SHORTEST_MS, plan.lateness_longest_s * 1000) for n in range(count)}
    group, ledger = stage.name("lateness"), stage.ledger(warm + count)
    with ledger, cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        stage.fill(topic, failing_once(warm))
        with stage.worker("ours", stage.spec(group, topic, delay_ms=_SHORTEST_MS)) as worker:
            stage.wait(worker, lambda: ledger.done >= warm, "the warm-up was done")
            before, began_ns = worker.used(), time.time_ns()
            stage.feed(topic, (Wanted(number, 1, wait) for number, wait in waits.items()), plan.lateness_rate)
            ended_ns, used = time.time_ns(), worker.used() - before
            stage.wait(worker, lambda: ledger.done >= warm + count, "all were delivered again")
        begin_ns = min(began_ns + plan.lateness_longest_s * 1_000_000_000, (began_ns + ended_ns) // 2)
        late = [
            ledger.lateness_ms(number, wait)
            for number, wait in waits.items()
            if begin_ns <= ledger.due_ns(number, wait) <= ended_ns
        ]
        figures = {
            "p50": percentile(late, 0.5),
            "p99": percentile(late, 0.99),
            "p99.9": percentile(late, 0.999),
            "largest": max(late),
            "CPU": used.worker_s / used.wall_s * 100,
        }
        return Run(figures, ledger.balance({**waits}, runs=2))

"""Accuracy: a steady flow of records that fail once, with mixed delays; how late each comes back."""

from __future__ import annotations

import random
import time

from benchmarks.records import Wanted
from benchmarks.results import Result, Target, figure
from benchmarks.runs import Say, failing_once
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import percentile
from retryapp.stage import ChildFailedError, NotInTimeError

NAME = "lateness"
TITLE = "Lateness under a steady flow"
OPTIONS = ("repeats", "lateness_rate", "lateness_s", "lateness_longest_s")
TARGET = Target(most=100.0)
_SHORTEST_MS = 1_000
_SEED = 20130101


def run(stage: Stage, say: Say) -> Result:
    """Run the flow as often as is counted."""
    plan = stage.plan
    runs: list[dict[str, float]] = []
    for number in range(plan.repeats):
        try:
            figures = _one(stage)
        except (NotInTimeError, ChildFailedError) as error:
            say(f"{NAME} {number + 1}/{plan.repeats}: DID NOT FINISH: {error}")
            continue
        runs.append(figures)
        shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        say(f"{NAME} {number + 1}/{plan.repeats}: {shown}")
    wrong = sum(one["early"] + one["lost"] + one["repeated"] for one in runs)
    units = {"p50": "ms", "p99": "ms", "p99.9": "ms", "largest": "ms", "CPU": "% of a core"}
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure(name, unit, [one[name] for one in runs], TARGET if name == "p99" else None)
            for name, unit in units.items()
        ],
        notes=[
            f"Records lost, early or delivered too often in all runs: {wrong:.0f}.",
            f"{plan.lateness_rate:,} records a second for {plan.lateness_s} s, each fails once and waits 1 to "
            f"{plan.lateness_longest_s} s (uniform, seeded). Lateness: start of the redelivery minus due time, which "
            "is failure plus wait, by the handler's own clock. Counted: what was due after the longest wait had "
            "passed and before the flow ended.",
        ],
        samples={"p99": [one["p99"] for one in runs]},
    )


def _one(stage: Stage) -> dict[str, float]:
    plan = stage.plan
    warm, count = plan.partitions * 25, plan.lateness_rate * plan.lateness_s
    chosen = random.Random(_SEED)  # noqa: S311 - the same delays in every run, no secret
    waits = [chosen.randint(_SHORTEST_MS, plan.lateness_longest_s * 1000) for _ in range(count)]
    group, ledger = stage.name("lateness"), stage.ledger(warm + count)
    with cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        stage.fill(topic, failing_once(warm))
        with stage.worker("ours", stage.spec(group, topic, delay_ms=_SHORTEST_MS)) as worker:
            stage.wait(worker, lambda: ledger.done >= warm, "the warm-up was done")
            before, began_ns = worker.used(), time.time_ns()
            stage.feed(topic, (Wanted(warm + n, 1, wait) for n, wait in enumerate(waits)), plan.lateness_rate)
            ended_ns, after = time.time_ns(), worker.used()
            stage.wait(worker, lambda: ledger.done >= warm + count, "all were delivered again")
    begin_ns = min(began_ns + plan.lateness_longest_s * 1_000_000_000, (began_ns + ended_ns) // 2)
    late, early, lost, repeated = [], 0, 0, 0
    for number, wait in enumerate(waits, warm):
        one = ledger.balance(range(number, number + 1), runs=2, wait_ms=wait)
        early, lost, repeated = early + one.early, lost + one.lost, repeated + one.repeated
        if begin_ns <= ledger.due_ns(number, wait) <= ended_ns:
            late.append(ledger.lateness_ms(number, wait))
    ledger.close()
    return {
        "p50": percentile(late, 0.5),
        "p99": percentile(late, 0.99),
        "p99.9": percentile(late, 0.999),
        "largest": max(late),
        "CPU": (after.worker_cpu_s - before.worker_cpu_s) / ((after.at_ns - before.at_ns) / 1e9) * 100,
        "early": early,
        "lost": lost,
        "repeated": repeated,
    }

"""Head of line: how long healthy records take with many waiting, with none, and while many fire at one moment."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.ledger import Ledger
from benchmarks.records import Wanted
from benchmarks.results import Result, figure
from benchmarks.runs import Run, each, healthy, in_pairs, repeated
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import pair_ratios, percentile
from benchmarks.worker import WorkerProcess
from benchmarks.workloads.waiting import ALWAYS, park
from retryapp.stage import NotInTimeError

TITLE = "Healthy records beside those that wait"
OPTIONS = ("pairs", "warmups", "repeats", "healthy_rate", "healthy_s", "healthy_pending", "healthy_firing")
_LEAD_S = 5
_LEAST_MS = 500
"""Shortest span of healthy records that is counted while others fire."""
_SKIPPED = 4
"""One part in so many of a flow, the first, is not counted."""


def run(stage: Stage) -> Result:
    """Keep a group with records that wait and one with none; feed both in turn; then let many fire in mid-flow."""
    plan = stage.plan
    groups = {kind: stage.name(f"healthy-{kind}") for kind in ("waiting", "none")}
    with cleaned(stage, *groups.values()):
        for kind, group in groups.items():
            stage.make_topic(f"{group}-main")
            stage.say(f"preparing the group with {plan.healthy_pending if kind == 'waiting' else 0:,} waiting")
            park(stage, group, f"{group}-main", plan.healthy_pending, ALWAYS if kind == "waiting" else 0)
        runs = in_pairs(stage, tuple(groups), lambda kind: _flow(stage, groups[kind]))
    firing = repeated(stage, "firing", partial(_while_firing, stage))
    p99 = {kind: each(runs[kind], "p99") for kind in groups}
    return Result(
        figures=[
            figure("p99 with waiting / p99 with none", "x", pair_ratios(p99["waiting"], p99["none"]), most=1.1),
            figure(f"p99 with {plan.healthy_pending:,} waiting", "ms", p99["waiting"]),
            figure("p99 with none waiting", "ms", p99["none"]),
            figure(f"p99 while {plan.healthy_firing:,} fire / before", "x", each(firing, "ratio"), most=2.0),
            figure(f"p50 while {plan.healthy_firing:,} fire", "ms", each(firing, "p50")),
            figure(f"p99 while {plan.healthy_firing:,} fire", "ms", each(firing, "p99")),
            figure("p99 of the same flow before they fire", "ms", each(firing, "before")),
            figure("time until all of them were delivered", "s", each(firing, "drain")),
        ],
        notes=[
            f"{plan.healthy_rate:,} healthy records a second in an open loop for {plan.healthy_s} s a run, the first "
            "quarter not counted. Time of a record: start of its handler minus the moment at which it was meant to be "
            "sent.",
            f"Firing: {plan.healthy_firing:,} records fall due at one moment in mid-flow; counted are the healthy "
            "records meant to be sent from that moment until the last of them was delivered.",
        ],
        samples={f"p99 {kind}": values for kind, values in p99.items()},
    )


def _flow(stage: Stage, group: str) -> Run:
    """Start the group's worker, feed it, and measure the time of each counted record."""
    plan = stage.plan
    warm, count = plan.partitions, plan.healthy_rate * plan.healthy_s
    topic = f"{group}-main"
    with stage.ledger(warm + count) as ledger:
        with stage.worker("ours", stage.spec(group, topic)) as worker:
            _ready(stage, worker, ledger, topic)
            slots = stage.feed(topic, healthy(count, first=warm), plan.healthy_rate)
            stage.wait(worker, lambda: ledger.done >= warm + count, "all healthy records were delivered")
        took = [_took_ms(ledger, n, slots) for n in range(warm + count // _SKIPPED, warm + count)]
    return Run({"p50": percentile(took, 0.5), "p99": percentile(took, 0.99)})


def _ready(stage: Stage, worker: WorkerProcess, ledger: Ledger, topic: str) -> None:
    """Wait until the worker has delivered one record of each partition."""
    stage.fill(topic, healthy(stage.plan.partitions))
    stage.wait(worker, lambda: ledger.done >= stage.plan.partitions, "a record of each partition was delivered")


def _took_ms(ledger: Ledger, number: int, slots: dict[int, int]) -> float:
    return (ledger.first_ns(number) - slots[number]) / 1e6


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _while_firing(stage: Stage) -> Run:
    """Park records that are due at one moment; feed healthy ones before and after it."""
    plan = stage.plan
    warm, many, count = plan.partitions, plan.healthy_firing, 2 * plan.healthy_rate * plan.healthy_s
    group, ledger = stage.name("firing"), stage.ledger(warm + many + count)
    parking_s = 10 + many / 1_000
    with ledger, cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        with stage.worker("ours", stage.spec(group, topic)) as worker:
            _ready(stage, worker, ledger, topic)
            due_ms = _now_ms() + int((parking_s + _LEAD_S + plan.healthy_s / 2) * 1000)
            begin_ms = due_ms - plan.healthy_s * 500
            stage.fill(topic, (Wanted(warm + n, 1, due_ms) for n in range(many)))
            stage.wait(worker, lambda: ledger.deliveries >= warm + many, "all had failed")
            if _now_ms() > begin_ms:
                raise NotInTimeError(f"ours did not finish: {many} records were parked within {parking_s:g} s")
            stage.wait(worker, lambda: _now_ms() > begin_ms, "the flow began")
            slots = stage.feed(topic, healthy(count, first=warm + many), plan.healthy_rate)
            stage.wait(worker, lambda: ledger.done >= warm + many + count, "all were delivered")
        last_ms = max(ledger.last_ns(n) for n in range(warm, warm + many)) / 1e6
        end_ms = max(last_ms, due_ms + _LEAST_MS)
        before = [_took_ms(ledger, n, slots) for n, slot_ns in slots.items() if slot_ns / 1e6 <= due_ms]
        during = [_took_ms(ledger, n, slots) for n, slot_ns in slots.items() if due_ms <= slot_ns / 1e6 <= end_ms]
    quiet, busy = percentile(before[len(before) // _SKIPPED :], 0.99), percentile(during, 0.99)
    figures = {"before": quiet, "p50": percentile(during, 0.5), "p99": busy, "ratio": busy / quiet}
    return Run({**figures, "drain": (last_ms - due_ms) / 1000})

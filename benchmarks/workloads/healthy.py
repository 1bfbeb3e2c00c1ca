"""Head of line: how long healthy records take with many waiting, with none, and while many fire at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.ledger import Ledger
from benchmarks.records import Wanted
from benchmarks.results import Result, Target, figure
from benchmarks.runs import Say, healthy
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import pair_ratios, percentile, turn_order
from benchmarks.worker import WorkerProcess
from benchmarks.workloads.waiting import park
from retryapp.stage import NotInTimeError

NAME = "healthy"
TITLE = "Healthy records beside those that wait"
OPTIONS = ("pairs", "repeats", "healthy_rate", "healthy_s", "healthy_pending", "healthy_firing")
_LEAD_S = 5
_LEAST_MS = 500
"""Of healthy records while others fire, at least so much is looked at."""
_SKIPPED = 4
"""One part in so many of a flow, the first, is not counted."""


@dataclass(slots=True)
class _Group:
    """A group that is kept over all pairs."""

    name: str
    topic: str


def run(stage: Stage, say: Say) -> Result:
    """Keep a group with records that wait and one with none; feed both in turn; then let many fire in mid-flow."""
    plan = stage.plan
    groups = {kind: _Group(name := stage.name(f"healthy-{kind}"), f"{name}-main") for kind in ("waiting", "none")}
    p99: dict[str, list[float | None]] = {kind: [] for kind in groups}
    with cleaned(stage, *(group.name for group in groups.values())):
        for kind, group in groups.items():
            stage.make_topic(group.topic)
            say(f"{NAME}: preparing the group with {plan.healthy_pending if kind == 'waiting' else 0:,} waiting")
            park(stage, group.name, group.topic, plan.healthy_pending, fail=kind == "waiting")
        for number in range(-plan.warmups, plan.pairs):
            for kind in turn_order(number % 2, tuple(groups)):
                found = _flow(stage, groups[kind])
                turn = "warm-up" if number < 0 else f"pair {number + 1}/{plan.pairs}"
                say(f"{NAME} {turn} {kind}: p50 {percentile(found, 0.5):.1f} ms, p99 {percentile(found, 0.99):.1f} ms")
                if number >= 0:
                    p99[kind].append(percentile(found, 0.99))
    fired = [_while_firing(stage, say, number) for number in range(plan.repeats)]
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure("p99 with waiting / p99 with none", "x", pair_ratios(p99["waiting"], p99["none"]), Target(most=1.1)),
            figure(f"p99 with {plan.healthy_pending:,} waiting", "ms", p99["waiting"]),
            figure("p99 with none waiting", "ms", p99["none"]),
            figure(f"p50 while {plan.healthy_firing:,} fire", "ms", [one["p50"] for one in fired]),
            figure(f"p99 while {plan.healthy_firing:,} fire", "ms", [one["p99"] for one in fired]),
            figure("p99 of the same flow before they fire", "ms", [one["before"] for one in fired]),
            figure("time until all of them were delivered", "s", [one["drain_s"] for one in fired]),
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


def _flow(stage: Stage, group: _Group) -> list[float]:
    """Start the group's worker, feed it, and return the time of each counted record in milliseconds."""
    plan = stage.plan
    warm, count = plan.partitions, plan.healthy_rate * plan.healthy_s
    ledger = stage.ledger(warm + count)
    with stage.worker("ours", stage.spec(group.name, group.topic)) as worker:
        _ready(stage, worker, ledger, group.topic)
        intended = stage.feed(group.topic, healthy(count, first=warm), plan.healthy_rate)
        stage.wait(worker, lambda: ledger.done >= warm + count, "all healthy records were delivered")
    found = [_took_ms(ledger, n, intended) for n in range(warm + count // _SKIPPED, warm + count)]
    ledger.close()
    return found


def _ready(stage: Stage, worker: WorkerProcess, ledger: Ledger, topic: str) -> None:
    """Wait until the worker has delivered one record of each partition."""
    stage.fill(topic, healthy(stage.plan.partitions))
    stage.wait(worker, lambda: ledger.done >= stage.plan.partitions, "a record of each partition was delivered")


def _took_ms(ledger: Ledger, number: int, intended: dict[int, int]) -> float:
    return (ledger.first_ns(number) - intended[number]) / 1e6


def _while_firing(stage: Stage, say: Say, run_number: int) -> dict[str, float]:
    """Park records that are due at one moment; feed healthy ones before and after it."""
    plan = stage.plan
    warm, many, count = plan.partitions, plan.healthy_firing, 2 * plan.healthy_rate * plan.healthy_s
    group, ledger = stage.name("firing"), stage.ledger(warm + many + count)
    parking_s = 10 + many / 1_000
    with cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        with stage.worker("ours", stage.spec(group, topic)) as worker:
            _ready(stage, worker, ledger, topic)
            due_ms = time.time_ns() // 1_000_000 + int((parking_s + _LEAD_S + plan.healthy_s / 2) * 1000)
            stage.fill(topic, (Wanted(warm + n, 1, due_ms) for n in range(many)))
            stage.wait(worker, lambda: ledger.deliveries >= warm + many, "all had failed")
            if time.time_ns() // 1_000_000 > due_ms - plan.healthy_s * 500:
                raise NotInTimeError(f"ours did not finish: {many} records were parked within {parking_s:g} s")
            stage.wait(worker, lambda: time.time_ns() // 1_000_000 > due_ms - plan.healthy_s * 500, "the flow began")
            intended = stage.feed(topic, healthy(count, first=warm + many), plan.healthy_rate)
            stage.wait(worker, lambda: ledger.done >= warm + many + count, "all were delivered")
    last_ms = max(ledger.last_ns(n) for n in range(warm, warm + many)) / 1e6
    before = list(_between(intended, 0, due_ms))
    during = list(_between(intended, due_ms, max(last_ms, due_ms + _LEAST_MS)))
    found = {
        "before": percentile([_took_ms(ledger, n, intended) for n in before[len(before) // _SKIPPED :]], 0.99),
        "p50": percentile([_took_ms(ledger, n, intended) for n in during], 0.5),
        "p99": percentile([_took_ms(ledger, n, intended) for n in during], 0.99),
        "drain_s": (last_ms - due_ms) / 1000,
    }
    ledger.close()
    say(f"{NAME} firing {run_number + 1}/{plan.repeats}: " + ", ".join(f"{k} {v:,.2f}" for k, v in found.items()))
    return found


def _between(intended: dict[int, int], begin_ms: float, end_ms: float) -> Iterator[int]:
    return (number for number, at_ns in intended.items() if begin_ms <= at_ns / 1e6 <= end_ms)

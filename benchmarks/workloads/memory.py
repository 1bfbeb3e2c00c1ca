"""Capacity: how much a worker grows between few and many waiting records."""

from __future__ import annotations

import time

from benchmarks.records import Wanted
from benchmarks.results import Result, Target, figure
from benchmarks.runs import Say
from benchmarks.stage import Stage, cleaned
from benchmarks.worker import WorkerProcess
from benchmarks.workloads.waiting import ALWAYS, DAY_MS, wait_parked

NAME = "memory"
TITLE = "Memory by what waits"
OPTIONS = ("repeats", "memory_small", "memory_large")
_REST_S = 5.0
_MIB = 2**20


def run(stage: Stage, say: Say) -> Result:
    """Park few, look, park many, look again; one worker throughout."""
    plan = stage.plan
    growth: list[float | None] = []
    small: list[float | None] = []
    large: list[float | None] = []
    peak: list[float | None] = []
    rates: list[float | None] = []
    for number in range(plan.repeats):
        group = stage.name(NAME)
        topic = f"{group}-main"
        ledger = stage.ledger(0)
        with cleaned(stage, group):
            stage.make_topic(topic)
            with stage.worker("ours", stage.spec(group, topic)) as worker:
                _more(stage, worker, group, topic, 0, plan.memory_small)
                few = _rested_rss(worker)
                began_s = time.monotonic()
                _more(stage, worker, group, topic, plan.memory_small, plan.memory_large)
                rates.append((plan.memory_large - plan.memory_small) / (time.monotonic() - began_s))
                many = _rested_rss(worker)
        ledger.close()
        small.append(few / _MIB)
        large.append(many / _MIB)
        growth.append((many - few) / _MIB)
        peak.append(worker.peak_rss / _MIB)
        say(f"{NAME} {number + 1}/{plan.repeats}: {few / _MIB:.0f} -> {many / _MIB:.0f} MiB, {rates[-1]:,.0f} parked/s")
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure("growth", "MiB", growth, Target(most=128)),
            figure(f"RSS with {plan.memory_small:,} waiting", "MiB", small),
            figure(f"RSS with {plan.memory_large:,} waiting", "MiB", large),
            figure("largest RSS on the way", "MiB", peak),
            figure("parked", "records/s", rates),
        ],
        notes=[f"One worker; resident memory {_REST_S:g} s after the last record was in the pending table."],
        samples={"growth MiB": growth},
    )


def _more(stage: Stage, worker: WorkerProcess, group: str, topic: str, first: int, until: int) -> None:
    stage.fill(topic, (Wanted(n, ALWAYS, DAY_MS) for n in range(first, until)))
    wait_parked(stage, worker, group, topic)


def _rested_rss(worker: WorkerProcess) -> int:
    time.sleep(_REST_S)
    return worker.rss

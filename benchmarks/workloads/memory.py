"""Capacity: how much a worker grows between few and many waiting records."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.results import Result, figure
from benchmarks.runs import Run, each, repeated
from benchmarks.stage import Stage, cleaned
from benchmarks.workloads.waiting import park_more

TITLE = "Memory by what waits"
OPTIONS = ("repeats", "memory_small", "memory_large")
_REST_S = 5.0
_MIB = 2**20


def run(stage: Stage) -> Result:
    """Park few, look, park many, look again; one worker throughout."""
    plan = stage.plan
    runs = repeated(stage, "worker", partial(_grow, stage))
    return Result(
        figures=[
            figure("growth", "MiB", each(runs, "growth"), most=128),
            figure(f"RSS with {plan.memory_small:,} waiting", "MiB", each(runs, "small")),
            figure(f"RSS with {plan.memory_large:,} waiting", "MiB", each(runs, "large")),
            figure("largest RSS on the way", "MiB", each(runs, "peak")),
            figure("parked", "records/s", each(runs, "parked")),
        ],
        notes=[f"One worker; resident memory {_REST_S:g} s after the last record was in the pending table."],
        samples={"growth MiB": each(runs, "growth")},
    )


def _grow(stage: Stage) -> Run:
    small, large = stage.plan.memory_small, stage.plan.memory_large
    group = stage.name("memory")
    with stage.ledger(0), cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        with stage.worker("ours", stage.spec(group, topic)) as worker:
            park_more(stage, worker, group, topic, range(small))
            time.sleep(_REST_S)
            few = worker.rss
            began_s = time.monotonic()
            park_more(stage, worker, group, topic, range(small, large))
            rate = (large - small) / (time.monotonic() - began_s)
            time.sleep(_REST_S)
            many = worker.rss
    mib = {"growth": many - few, "small": few, "large": many, "peak": worker.peak_rss}
    return Run({**{name: size / _MIB for name, size in mib.items()}, "parked": rate})

"""Recovery: a worker starts with its local store lost and many records waiting."""

from __future__ import annotations

import shutil

from benchmarks.results import Result, Target, figure
from benchmarks.runs import Say, healthy
from benchmarks.stage import Stage, cleaned
from benchmarks.workloads.lanes import opened
from benchmarks.workloads.waiting import park

NAME = "recovery"
TITLE = "Recovery of a lost store"
OPTIONS = ("repeats", "recovery_pending")


def run(stage: Stage, say: Say) -> Result:
    """Park records once; then start workers, with the store kept and with it lost."""
    plan = stage.plan
    group = stage.name(NAME)
    topic = f"{group}-main"
    rates: list[float | None] = []
    first: dict[str, list[float | None]] = {"kept": [], "lost": []}
    with cleaned(stage, group):
        stage.make_topic(topic)
        say(f"{NAME}: parking {plan.recovery_pending:,} records")
        park(stage, group, topic, plan.recovery_pending)
        for number in range(plan.repeats):
            for kind in ("kept", "lost"):
                opening_s, delivered_s = _start(stage, group, topic, lose=kind == "lost")
                first[kind].append(delivered_s)
                if kind == "lost":
                    rates.append(plan.recovery_pending / opening_s)
                say(
                    f"{NAME} {number + 1}/{plan.repeats} store {kind}: lanes open in {opening_s:.2f} s, "
                    f"first delivery {delivered_s:.2f} s after the start"
                )
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure("store lost: rebuilt from the changelog", "records/s", rates, Target(least=100_000)),
            figure("store lost: process start to deliveries on all partitions", "s", first["lost"]),
            figure("store kept: process start to deliveries on all partitions", "s", first["kept"]),
        ],
        notes=[
            f"{plan.recovery_pending:,} records wait. The rate is that number by the time from the first lane that "
            "begins to open to the last that is open (the worker's log), fencing and offsets included; the time to "
            "deliveries is the ledger's.",
        ],
        samples={"records/s": rates, **{f"start to deliveries, store {kind}": v for kind, v in first.items()}},
    )


def _start(stage: Stage, group: str, topic: str, *, lose: bool) -> tuple[float, float]:
    """Start a worker; return how long its lanes took to open, and start to the last partition's first delivery."""
    ledger = stage.ledger(stage.plan.partitions)
    spec = stage.spec(group, topic)
    if lose:
        shutil.rmtree(spec.datadir)
    stage.fill(topic, healthy(stage.plan.partitions))
    with stage.worker("ours", spec, level="info") as worker:
        stage.wait(worker, lambda: ledger.done >= stage.plan.partitions, "each partition delivered")
        delivered_ns = max(ledger.first_ns(n) for n in range(stage.plan.partitions))
        lanes = opened(worker.text)
    ledger.close()
    return lanes.opening_s, (delivered_ns - worker.started_ns) / 1e9

"""Recovery: a worker starts with its local store lost and many records waiting."""

from __future__ import annotations

import shutil
from functools import partial

from benchmarks.results import Result, figure
from benchmarks.runs import Run, each, healthy, repeated
from benchmarks.stage import Stage, cleaned
from benchmarks.workloads.lanes import opened
from benchmarks.workloads.waiting import park

TITLE = "Recovery of a lost store"
OPTIONS = ("repeats", "recovery_pending")


def run(stage: Stage) -> Result:
    """Park records once; then start workers, with the store kept and with it lost."""
    plan = stage.plan
    group = stage.name("recovery")
    with cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        stage.say(f"parking {plan.recovery_pending:,} records")
        park(stage, group, topic, plan.recovery_pending)
        kept = repeated(stage, "store kept", partial(_start, stage, group, topic, lose=False))
        lost = repeated(stage, "store lost", partial(_start, stage, group, topic, lose=True))
    deliveries = {"kept": each(kept, "deliveries"), "lost": each(lost, "deliveries")}
    return Result(
        figures=[
            figure("store lost: rebuilt from the changelog", "records/s", each(lost, "rebuilt"), least=200_000),
            figure("store lost: process start to deliveries on all partitions", "s", deliveries["lost"]),
            figure("store kept: process start to deliveries on all partitions", "s", deliveries["kept"]),
        ],
        notes=[
            f"{plan.recovery_pending:,} records wait. The rate is that number by the time from the first lane that "
            "begins to open to the last that is open (the worker's log), fencing and offsets included; the time to "
            "deliveries is the ledger's.",
        ],
        samples={
            "records/s": each(lost, "rebuilt"),
            **{f"start to deliveries, store {kind}": values for kind, values in deliveries.items()},
        },
    )


def _start(stage: Stage, group: str, topic: str, *, lose: bool) -> Run:
    count = stage.plan.partitions
    with stage.ledger(count) as ledger:
        spec = stage.spec(group, topic)
        if lose:
            shutil.rmtree(spec.datadir)
        stage.fill(topic, healthy(count))
        with stage.worker("ours", spec, level="info") as worker:
            stage.wait(worker, lambda: ledger.done >= count, "each partition delivered")
        delivered_s = max(ledger.first_ns(n) for n in range(count)) / 1e9
    rebuilt = stage.plan.recovery_pending / opened(worker.log).opening_s
    return Run({"rebuilt": rebuilt, "deliveries": delivered_s - worker.started_s})

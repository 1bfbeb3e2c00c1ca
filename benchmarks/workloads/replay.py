"""Replays: how fast a job sends dead letters back, how well it keeps a rate, and what healthy records feel of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

from benchmarks.records import REJECTED, Wanted
from benchmarks.results import Result, figure
from benchmarks.runs import Run, each, healthy, repeated, void
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import percentile
from retryapp.stage import NotInTimeError

TITLE = "Replays of dead letters"
OPTIONS = ("repeats", "replayed", "replay_pace", "paced_s", "healthy_s")
_HEALTHY_RATE = 1_000
_LEAST_NS = 500_000_000
"""Shortest span of healthy records that is counted beside a replay."""
_PREVIEW_S = 120.0


def run(stage: Stage) -> Result:
    """Replay all without a rate, and fewer with one."""
    plan = stage.plan
    fast = repeated(stage, "as fast as it goes", partial(_replayed, stage, plan.replayed, ()))
    paced = repeated(
        stage,
        f"at {plan.replay_pace:,} a second",
        partial(_replayed, stage, plan.replay_pace * plan.paced_s, ("--rate", f"{plan.replay_pace}/s")),
    )
    beside = repeated(stage, "beside healthy records", partial(_beside, stage))
    return Result(
        figures=[
            figure("replayed", "records/s", each(fast, "rate"), least=5_000),
            figure("from the command to the last", "s", each(fast, "seconds")),
            figure("CPU", "us a replay", each(fast, "CPU us")),
            figure("with a rate / that rate", "x", [_share(run, plan.replay_pace) for run in paced], least=0.95),
            figure("p99 of healthy records beside a replay / before it", "x", each(beside, "ratio"), most=1.3),
            figure("p99 of healthy records beside a replay", "ms", each(beside, "p99")),
            figure("p99 of the same flow before it", "ms", each(beside, "before")),
        ],
        notes=[
            f"{plan.replayed:,} records are dead at their first delivery; one job replays all, and each goes well. "
            "Rate: from the first replayed delivery to the last.",
            f"Beside: a fifth as many letters are replayed as fast as it goes while {_HEALTHY_RATE:,} healthy records "
            "a second come. Time of a record: start of its handler minus the moment at which it was meant to be sent. "
            "Counted from the end of the command on: it reads all letters, and here it shares the machine.",
            f"Runs in which a record was lost or came twice: {void([*fast, *paced, *beside])}.",
        ],
        samples={"replayed": each(fast, "rate"), "with a rate": each(paced, "rate")},
    )


def _share(run: Run | None, pace: int) -> float | None:
    return None if run is None else run.figures["rate"] / pace


def _replayed(stage: Stage, count: int, pace: tuple[str, ...]) -> Run:
    group, ledger = stage.name("replay"), stage.ledger(count)
    with ledger, cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        stage.fill(topic, (Wanted(number, 1, REJECTED) for number in range(count)))
        with stage.worker("ours", stage.spec(group, topic)) as worker:
            stage.wait(worker, lambda: stage.lag(group, topic) == 0, "all were dead", 0.25)
            began = worker.used()
            _begin_job(stage, group, pace)
            stage.wait(worker, lambda: ledger.done >= count, f"all {count} replays were done")
            used = worker.used() - began
        replays_s = sorted(ledger.last_ns(number) / 1e9 for number in range(count))
        figures = {
            "rate": (count - 1) / (replays_s[-1] - replays_s[0]),
            "seconds": replays_s[-1] - began.wall_s,
            "CPU us": used.worker_s / count * 1e6,
        }
        return Run(figures, ledger.balance(dict.fromkeys(range(count)), runs=2))


def _beside(stage: Stage) -> Run:
    """Feed healthy records, and replay in the middle of it."""
    plan = stage.plan
    dead, warm, quiet = plan.replayed // 5, plan.partitions, _HEALTHY_RATE * plan.healthy_s
    group, ledger = stage.name("replay"), stage.ledger(dead + warm + 3 * quiet)
    with ledger, cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        stage.fill(topic, (Wanted(number, 1, REJECTED) for number in range(dead)))
        stage.fill(topic, healthy(warm, first=dead))
        with stage.worker("ours", stage.spec(group, topic)) as worker:
            stage.wait(worker, lambda: stage.lag(group, topic) == 0, "all were dead", 0.25)
            ended_ns = list[int]()
            begin = threading.Timer(plan.healthy_s, lambda: ended_ns.append(_begin_job(stage, group, ())))
            begin.start()
            slots = stage.feed(topic, healthy(3 * quiet, first=dead + warm), _HEALTHY_RATE)
            begin.join()
            stage.wait(worker, lambda: ledger.done >= dead + warm + 3 * quiet, "all were done")
        replays_ns = [ledger.last_ns(number) for number in range(dead)]
        first_ns = max([min(replays_ns), *ended_ns])
        last_ns = max(max(replays_ns), first_ns + _LEAST_NS)
        took = {number: (ledger.first_ns(number) - slot_ns) / 1e6 for number, slot_ns in slots.items()}
        before = percentile(
            [took[n] for n, slot_ns in list(slots.items())[quiet // 4 : quiet] if slot_ns < min(replays_ns)], 0.99
        )
        during = percentile([took[n] for n, slot_ns in slots.items() if first_ns <= slot_ns <= last_ns], 0.99)
        balance = ledger.balance(dict.fromkeys(range(dead)), runs=2)
        return Run({"before": before, "p99": during, "ratio": during / before}, balance)


def _begin_job(stage: Stage, group: str, pace: tuple[str, ...]) -> int:
    """Have the command line begin the job, the workers do the rest; return when it has ended, in epoch nanoseconds."""
    command = ["dead", "replay", "--broker", stage.connection.bootstrap, "--group", group, "--all", "--yes", "--detach"]
    command += ["--why", "measured"]
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "retryapp.cli.main", *command, *pace],
        capture_output=True, text=True, timeout=_PREVIEW_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NotInTimeError(f"no job began: {(done.stdout + done.stderr).strip()[-500:]}")
    return time.time_ns()

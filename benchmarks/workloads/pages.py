"""Pages: how long they take beside a million records, and what reading them costs the retries."""

from __future__ import annotations

import random
import threading
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.ledger import Ledger
from benchmarks.records import REJECTED, Wanted
from benchmarks.results import Result, figure
from benchmarks.runs import Run, each, repeated, void
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import percentile
from benchmarks.worker import WorkerProcess
from benchmarks.workloads.waiting import ALWAYS, DAY_MS
from retryapp.broker.probe import free_ports

TITLE = "Pages beside what waits and what is dead"
OPTIONS = ("repeats", "shown_waiting", "shown_dead", "reads", "lateness_s")
_PAGES = {
    "overview": "",
    "handler": "{main}/",
    "partitions": "{main}/partitions",
    "waiting": "{main}/pending",
    "dead": "{main}/dead",
}
_FLOW_RATE = 200
_WARM_S = 5
_SHORTEST_MS, _LONGEST_MS = 500, 2_000
_SEED = 20130101


def run(stage: Stage) -> Result:
    """Let two workers take all in; then read each page, and let a flow of retries go on with readers and without."""
    plan = stage.plan
    runs = repeated(stage, "two workers", partial(_read, stage))
    return Result(
        figures=[
            figure("p99 of all pages", "ms", each(runs, "p99"), most=300.0),
            *(figure(f"p99 of {name}", "ms", each(runs, name)) for name in _PAGES),
            figure("lateness p99 with a reader / with none", "x", each(runs, "ratio"), most=1.5),
            figure("lateness p99 with a reader", "ms", each(runs, "read")),
            figure("lateness p99 with none", "ms", each(runs, "quiet")),
        ],
        notes=[
            f"{plan.shown_waiting:,} records wait for a day, and {plan.shown_dead:,} are dead, in one handler with two "
            f"workers. Each page is read {plan.reads} times, one at a time, from one of the two, by HTTP.",
            f"Lateness: {_FLOW_RATE} records a second for {plan.lateness_s} s, each fails once and waits 0.5 to 2 s. "
            "One run has a reader who loads page after page, the other has none.",
            f"Runs in which a record of that flow was lost, early or delivered too often: {void(runs)}.",
        ],
        samples={"p99": each(runs, "p99"), "ratio": each(runs, "ratio")},
    )


def _read(stage: Stage) -> Run:
    plan = stage.plan
    group, flow, warm = stage.name("pages"), _FLOW_RATE * plan.lateness_s, _FLOW_RATE * _WARM_S
    flows = range(warm, warm + flow), range(warm + flow, warm + 2 * flow)
    waiting = range(flows[-1].stop, flows[-1].stop + plan.shown_waiting)
    dead = range(waiting.stop, waiting.stop + plan.shown_dead)
    with stage.ledger(dead.stop) as ledger, cleaned(stage, group), ExitStack() as workers:
        topic = stage.make_topic(f"{group}-main")
        spec = stage.spec(group, topic, delay_ms=_SHORTEST_MS)
        ports = free_ports(2)
        for number, port in enumerate(ports):
            own = replace(spec, datadir=f"{spec.datadir}/{number}")
            worker = workers.enter_context(stage.worker("ours", own, web_port=port))
        for numbers, wait_ms, what in ((waiting, DAY_MS, "all wait"), (dead, REJECTED, "all are dead")):
            stage.fill(topic, (Wanted(number, ALWAYS, wait_ms) for number in numbers))
            stage.wait(worker, lambda: stage.lag(group, topic) == 0, what, 0.5)
        pages = {
            name: f"http://127.0.0.1:{ports[0]}/retries/{path.format(main=topic)}" for name, path in _PAGES.items()
        }
        took_ms = {name: [_get(address) for _ in range(plan.reads)] for name, address in pages.items()}
        _flow(stage, worker, ledger, topic, range(warm))
        quiet = _flow(stage, worker, ledger, topic, flows[0])
        stop = threading.Event()
        reader = threading.Thread(target=_read_on, args=(list(pages.values()), stop))
        reader.start()
        try:
            busy = _flow(stage, worker, ledger, topic, flows[1])
        finally:
            stop.set()
            reader.join()
        late = {name: _late_ms(ledger, waits) for name, waits in (("quiet", quiet), ("read", busy))}
        figures = {
            **{name: percentile(times, 0.99) for name, times in took_ms.items()},
            "p99": percentile([each for times in took_ms.values() for each in times], 0.99),
            **late,
            "ratio": late["read"] / late["quiet"],
        }
        return Run(figures, ledger.balance({**quiet, **busy}, runs=2))


def _late_ms(ledger: Ledger, waits: dict[int, int]) -> float:
    return percentile([ledger.lateness_ms(number, wait_ms) for number, wait_ms in waits.items()], 0.99)


def _get(address: str) -> float:
    """Read a page; return milliseconds."""
    began_s = time.monotonic()
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - http, of our own worker
        answer.read()
    return (time.monotonic() - began_s) * 1_000


def _read_on(addresses: list[str], stop: threading.Event) -> None:
    while not stop.is_set():
        for address in addresses:
            _get(address)


def _flow(stage: Stage, worker: WorkerProcess, ledger: Ledger, topic: str, numbers: range) -> dict[int, int]:
    """Feed records that fail once; return their waits once all came back."""
    rng = random.Random(_SEED)  # noqa: S311 - the same delays in every run, no secret
    waits = {number: rng.randint(_SHORTEST_MS, _LONGEST_MS) for number in numbers}
    stage.feed(topic, (Wanted(number, 1, wait) for number, wait in waits.items()), _FLOW_RATE)
    stage.wait(worker, lambda: not ledger.balance(waits, runs=2).lost, "all came back", 0.25)
    return waits

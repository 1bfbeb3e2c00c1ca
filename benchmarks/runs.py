"""One run of one side: start its worker, let it work, count from outside, stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.ledger import SOUND, Balance, Ledger
from benchmarks.records import Wanted
from benchmarks.stage import Stage, cleaned
from benchmarks.stats import percentile, turn_order
from benchmarks.worker import Used
from retryapp.stage import ChildFailedError, NotInTimeError

WARMUP_SHARE = 5
"""One record in so many, the first ones, is not counted in a happy run."""
_SERIES_POINTS = 2_000


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run of one side, by name."""

    figures: dict[str, float]
    balance: Balance = SOUND
    series: tuple[tuple[float, float], ...] = ()
    """Of a burst: seconds since the first due time, lateness in milliseconds; thinned out."""

    def __str__(self) -> str:
        void = "" if self.balance.sound else f" VOID: {self.balance}"
        return ", ".join(f"{name} {value:,.1f}" for name, value in self.figures.items()) + void


Runs = list[Run | None]
"""None: did not finish."""


def each(runs: Runs, name: str) -> list[float | None]:
    return [None if run is None else run.figures[name] for run in runs]


def void(runs: Runs) -> int:
    """Count the runs in which a record was lost, early, or delivered too often."""
    return sum(run is not None and not run.balance.sound for run in runs)


def attempt(stage: Stage, label: str, run: Callable[[], Run]) -> Run | None:
    """Run once; a run that does not finish is a result."""
    try:
        finished = run()
    except (NotInTimeError, ChildFailedError) as error:
        stage.say(f"{label}: DID NOT FINISH: {error}")
        return None
    stage.say(f"{label}: {finished}")
    return finished


def repeated(stage: Stage, label: str, run: Callable[[], Run]) -> Runs:
    """Run as often as the plan says.

    Raises:
        NotInTimeError: no run finished.
    """
    times = stage.plan.repeats
    runs = [attempt(stage, f"{label} {number + 1}/{times}", run) for number in range(times)]
    if not any(runs):
        raise NotInTimeError(f"{label}: no run finished")
    return runs


def in_pairs(stage: Stage, sides: Sequence[str], run: Callable[[str], Run]) -> dict[str, Runs]:
    """Run two sides in pairs; which of them begins alternates, and warm-ups are not counted."""
    plan = stage.plan
    runs: dict[str, Runs] = {side: [] for side in sides}
    for number in range(-plan.warmups, plan.pairs):
        turn = "warm-up" if number < 0 else f"pair {number + 1}/{plan.pairs}"
        for side in turn_order(number, sides):
            outcome = attempt(stage, f"{turn} {side}", partial(run, side))
            if number >= 0:
                runs[side].append(outcome)
    return runs


def healthy(count: int, first: int = 0) -> Iterator[Wanted]:
    return (Wanted(number, 0, 0) for number in range(first, first + count))


def failing_once(count: int, first: int = 0) -> Iterator[Wanted]:
    """Return records that fail once and wait for the policy's delay."""
    return (Wanted(number, 1, 0) for number in range(first, first + count))


def happy_run(stage: Stage, topic: str, side: str, *, count: int = 0, **options: Any) -> Run:
    """Let a fresh group work through a topic in which nothing comes back; `options`: of our handler.

    `count`: records of the topic, if not `happy_records`.

    The clock runs from one fifth of the records to the last, by the ledger that the handler writes; then the group's
    committed offsets have to reach the topic's ends.
    """
    count = count or stage.plan.happy_records
    group, ledger = stage.name(side), stage.ledger(count)
    with ledger, cleaned(stage, group):
        spec = stage.spec(group, topic, **options)
        if side != "bare_faust":
            _retry_topic(stage, side, spec.retry_topic)
        with stage.worker(side, spec) as worker:
            stage.wait(worker, lambda: ledger.deliveries >= count // WARMUP_SHARE, "the warm-up came")
            began, first = worker.used(), ledger.deliveries
            stage.wait(worker, lambda: ledger.deliveries >= count, f"all {count} deliveries came")
            used, counted = worker.used() - began, ledger.deliveries - first
            stage.wait(worker, lambda: stage.lag(group, topic) == 0, "all offsets were committed", 0.25)
        balance = ledger.balance(dict.fromkeys(range(count)), runs=1)
    return Run({"rate": counted / used.wall_s, **_costs(used, counted, worker.peak_rss)}, balance)


def burst_run(stage: Stage, side: str, *, count_records: bool = False, level: str | None = None, **options: Any) -> Run:
    """Hand a warm worker a burst of records that all fail once; the clock runs until the last was delivered again.

    The rate is records by the time from the first delivery to the last redelivery, less the delay that nothing can
    shorten. `level`: of the worker's log, else the plan's.
    """
    plan = stage.plan
    warm, count, delay_ms = plan.burst_warmup, plan.burst_records, plan.burst_delay_ms
    burst = range(warm, warm + count)
    group, ledger = stage.name(side), stage.ledger(warm + count)
    with ledger, cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        spec = stage.spec(group, topic, delay_ms=delay_ms, **options)
        _retry_topic(stage, side, spec.retry_topic)
        stage.fill(topic, failing_once(warm))
        with stage.worker(side, spec, level=level) as worker:
            stage.wait(worker, lambda: ledger.done >= warm, f"the {warm} records of the warm-up were done")
            began = worker.used()
            stage.fill(topic, failing_once(count, first=warm))
            stage.wait(worker, lambda: ledger.done >= warm + count, f"all {count} records were done")
            used = worker.used() - began
        sent = stage.broker_records(group, but=topic) if count_records else None
        first_ns, last_ns = [ledger.first_ns(n) for n in burst], [ledger.last_ns(n) for n in burst]
        late_ms = [ledger.lateness_ms(n, delay_ms) for n in burst]
        done_s = (max(last_ns) - min(first_ns)) / 1e9
        figures = {
            "rate": count / (done_s - delay_ms / 1000),
            "first rate": (count - 1) / max(1e-9, (max(first_ns) - min(first_ns)) / 1e9),
            "seconds": done_s,
            "p50": percentile(late_ms, 0.5),
            "p99": percentile(late_ms, 0.99),
            **_costs(used, count, worker.peak_rss),
        }
        if sent is not None:
            records, offsets = sent
            figures |= {"records a retry": records / (warm + count), "offsets a retry": offsets / (warm + count)}
        balance = ledger.balance(dict.fromkeys(burst, delay_ms), runs=2)
        return Run(figures, balance, _series(ledger, burst, delay_ms))


def _retry_topic(stage: Stage, side: str, topic: str) -> None:
    if side in {"faust_table", "pause_and_seek"}:
        stage.make_topic(topic)


def _costs(used: Used, count: int, rss: int) -> dict[str, float]:
    return {"CPU us": used.worker_s / count * 1e6, "broker us": used.broker_s / count * 1e6, "RSS MiB": rss / 2**20}


def _series(ledger: Ledger, burst: range, delay_ms: int) -> tuple[tuple[float, float], ...]:
    due_first = min(ledger.due_ns(n, delay_ms) for n in burst)
    points = (
        (round((ledger.last_ns(n) - due_first) / 1e9, 3), round(ledger.lateness_ms(n, delay_ms), 1))
        for n in burst[:: max(1, len(burst) // _SERIES_POINTS)]
    )
    return tuple(sorted(points))

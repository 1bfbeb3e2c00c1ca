"""One run of one side: start its worker, let it work, count from outside, stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.ledger import Balance, Ledger
from benchmarks.records import Wanted
from benchmarks.stage import Stage, cleaned
from benchmarks.worker import Used
from retryapp.stage import ChildFailedError, NotInTimeError

WARMUP_SHARE = 5
"""One record in so many, the first ones, is not counted in a happy run."""
_SERIES_POINTS = 2_000

Say = Callable[[str], None]
"""Tells a person what goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run of one side came to."""

    side: str
    rate: float
    """Records a second."""
    cpu_us: float
    """Worker's processor time for each record, microseconds."""
    broker_us: float
    """Broker's, beside."""
    rss_mib: float
    """Largest resident memory of the worker."""
    balance: Balance
    first_rate: float = 0.0
    """First deliveries a second, in a burst."""
    again_rate: float = 0.0
    """Redeliveries a second, from the first to the last."""
    done_s: float = 0.0
    """From the first delivery of a burst to the last redelivery."""
    lateness_ms: tuple[float, ...] = field(default=(), repr=False)
    """Of each redelivery, in any order."""
    series: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    """Seconds since the first due time, lateness in milliseconds; thinned out."""
    records_per_retry: float = 0.0
    """Records on topics other than the main one, for each record of the burst."""
    offsets_per_retry: float = 0.0
    """The same with transaction markers."""


def healthy(count: int, first: int = 0) -> Iterator[Wanted]:
    """Return records that succeed."""
    return (Wanted(number, 0, 0) for number in range(first, first + count))


def failing_once(count: int, first: int = 0) -> Iterator[Wanted]:
    """Return records that fail once and wait for as long as the policy says."""
    return (Wanted(number, 1, 0) for number in range(first, first + count))


def each(runs: Sequence[Run | None], of: Callable[[Run], float]) -> list[float | None]:
    """Return one figure of each run; none of a run that did not finish."""
    return [None if run is None else of(run) for run in runs]


def attempt(say: Say, label: str, run: Callable[[], Run]) -> Run | None:
    """Run one side; one that does not finish is a result, told as such."""
    try:
        found = run()
    except (NotInTimeError, ChildFailedError) as error:
        say(f"{label}: DID NOT FINISH: {error}")
        return None
    void = "" if found.balance.sound else f" VOID: {found.balance}"
    say(f"{label}: {found.rate:,.0f}/s, {found.cpu_us:.1f} us CPU a record, RSS {found.rss_mib:.0f} MiB{void}")
    return found


def happy_run(stage: Stage, side: str, topic: str, count: int) -> Run:
    """Let a fresh group work through a topic in which nothing fails.

    The clock runs from one fifth of the records to the last, by the ledger that the handler writes; then the group's
    committed offsets have to reach the topic's ends.
    """
    group, ledger = stage.name(side), stage.ledger(count)
    with cleaned(stage, group):
        spec = stage.spec(group, topic)
        if side != "bare_faust":
            _retry_topic(stage, side, spec.retry_topic)
        with stage.worker(side, spec) as worker:
            stage.wait(worker, lambda: ledger.deliveries >= count // WARMUP_SHARE, "the warm-up came")
            began, first = worker.used(), ledger.deliveries
            stage.wait(worker, lambda: ledger.deliveries >= count, f"all {count} deliveries came")
            ended, last = worker.used(), ledger.deliveries
            stage.wait(worker, lambda: stage.lag(group, topic) == 0, "all offsets were committed", 0.25)
        run = _run(side, began, ended, last - first, worker.peak_rss, ledger.balance(range(count), runs=1))
    ledger.close()
    return run


def burst_run(stage: Stage, side: str, *, count_records: bool = False) -> Run:
    """Hand a warm worker a burst of records that all fail once; the clock runs until the last was delivered again.

    The rate is records by the time from the first delivery to the last redelivery, less the delay that nobody can
    shorten.
    """
    plan = stage.plan
    warm, count, delay_ms = plan.burst_warmup, plan.burst_records, plan.burst_delay_ms
    burst = range(warm, warm + count)
    group, ledger = stage.name(side), stage.ledger(warm + count)
    with cleaned(stage, group):
        topic = stage.make_topic(f"{group}-main")
        spec = stage.spec(group, topic, delay_ms=delay_ms)
        _retry_topic(stage, side, spec.retry_topic)
        stage.fill(topic, failing_once(warm))
        with stage.worker(side, spec) as worker:
            stage.wait(worker, lambda: ledger.done >= warm, f"the {warm} records of the warm-up were done")
            began = worker.used()
            stage.fill(topic, failing_once(count, first=warm))
            stage.wait(worker, lambda: ledger.done >= warm + count, f"all {count} records were done")
            ended = worker.used()
        sent, offsets = stage.broker_records(group, but=topic) if count_records else (0, 0)
    firsts = sorted(ledger.first_ns(n) for n in burst)
    lasts = sorted(ledger.last_ns(n) for n in burst)
    done_s = (lasts[-1] - firsts[0]) / 1e9
    run = _run(side, began, ended, count, worker.peak_rss, ledger.balance(burst, runs=2, wait_ms=delay_ms))
    late = tuple(ledger.lateness_ms(n, delay_ms) for n in burst)
    run = replace(
        run,
        rate=count / (done_s - delay_ms / 1000),
        first_rate=_span_rate(firsts),
        again_rate=_span_rate(lasts),
        done_s=done_s,
        lateness_ms=late,
        series=_series(ledger, burst, delay_ms),
        records_per_retry=sent / (warm + count),
        offsets_per_retry=offsets / (warm + count),
    )
    ledger.close()
    return run


def _retry_topic(stage: Stage, side: str, topic: str) -> None:
    if side in {"faust_table", "pause_and_seek"}:
        stage.make_topic(topic)


def _run(side: str, began: Used, ended: Used, count: int, rss: int, balance: Balance) -> Run:
    return Run(
        side=side,
        rate=count / ((ended.at_ns - began.at_ns) / 1e9),
        cpu_us=(ended.worker_cpu_s - began.worker_cpu_s) / count * 1e6,
        broker_us=(ended.broker_cpu_s - began.broker_cpu_s) / count * 1e6,
        rss_mib=rss / 2**20,
        balance=balance,
    )


def _span_rate(moments_ns: list[int]) -> float:
    return (len(moments_ns) - 1) / max(1e-9, (moments_ns[-1] - moments_ns[0]) / 1e9)


def _series(ledger: Ledger, burst: range, delay_ms: int) -> tuple[tuple[float, float], ...]:
    due_first = min(ledger.due_ns(n, delay_ms) for n in burst)
    step = max(1, len(burst) // _SERIES_POINTS)
    found = [
        (round((ledger.last_ns(n) - due_first) / 1e9, 3), round(ledger.lateness_ms(n, delay_ms), 1))
        for n in burst[::step]
    ]
    return tuple(sorted(found))

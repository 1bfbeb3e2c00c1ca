"""The peers' table: all sides in one run, and the picture of lateness over time under a burst."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from benchmarks.results import Result, Table, figure
from benchmarks.runs import Run, Say, attempt, burst_run, each, happy_run, healthy
from benchmarks.stage import Stage
from benchmarks.stats import estimate, percentile, turn_order

NAME = "peers"
TITLE = "The peers' table"
OPTIONS = ("rounds", "happy_records", "burst_records", "burst_delay_ms", "burst_warmup")
NAMES = {
    "ours": "ours",
    "bare_faust": "bare Faust agent",
    "faust_table": "Faust table and timer",
    "pause_and_seek": "aiokafka, pause and seek",
}
PICTURE = "lateness.png"
Runs = dict[str, list[Run | None]]


def run(stage: Stage, say: Say) -> Result:
    """Run every side in each round, each round beginning with another side."""
    plan = stage.plan
    topic = stage.make_topic(stage.name(NAME))
    stage.fill(topic, healthy(plan.happy_records))
    happy: Runs = {side: [] for side in NAMES}
    burst: Runs = {side: [] for side in NAMES if side != "bare_faust"}
    for number in range(plan.rounds):
        label = f"{NAME} round {number + 1}/{plan.rounds}"
        for side in turn_order(number, tuple(happy)):
            one = partial(happy_run, stage, side, topic, plan.happy_records)
            happy[side].append(attempt(say, f"{label} happy {side}", one))
        for side in turn_order(number, tuple(burst)):
            one = partial(burst_run, stage, side, count_records=True)
            burst[side].append(attempt(say, f"{label} burst {side}", one))
    stage.drop_topics(topic)
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure(f"{NAMES[side]}, retried", "records/s", each(runs, lambda r: r.rate)) for side, runs in burst.items()
        ],
        tables=[_table(happy, burst)],
        notes=[
            "Records/s and CPU a record: nothing fails. Everything behind that: the burst. CPU a retry covers both "
            "deliveries and all between. Broker records: on all topics but the main one and Kafka's own, for each "
            "record of the burst; with transaction markers, which take an offset each, in brackets.",
            "Wrong: records lost / early / delivered too often, of all rounds; a rate beside any is void.",
            "The loop has one delay for all records of a topic, no look-up, no attempts limit and no dead letters.",
        ],
        samples={f"{side} retried records/s": each(runs, lambda r: r.rate) for side, runs in burst.items()},
        picture=_picture(stage, say, burst),
    )


def _table(happy: Runs, burst: Runs) -> Table:
    columns = (
        "side", "records/s", "CPU us a record", "retried records/s", "lateness p50 / p99 ms", "CPU us a retry",
        "broker's CPU us a retry", "broker records a retry", "RSS MiB", "wrong", "finished",
    )  # fmt: skip
    return Table(columns, tuple(_row(side, happy[side], burst.get(side)) for side in NAMES))


def _row(side: str, happy: list[Run | None], burst: list[Run | None] | None) -> tuple[str, ...]:
    plain = [run for run in happy if run is not None]
    retried = [run for run in burst or () if run is not None]
    done = [*plain, *retried]
    wrong = "/".join(str(sum(getattr(r.balance, what) for r in done)) for what in ("lost", "early", "repeated"))
    largest = [r.rss_mib for r in (retried or plain)]
    return (
        NAMES[side],
        _shown(plain, lambda r: r.rate),
        _shown(plain, lambda r: r.cpu_us, 1),
        _shown(retried, lambda r: r.rate),
        f"{_median(retried, lambda r: percentile(r.lateness_ms, 0.5))} / "
        f"{_median(retried, lambda r: percentile(r.lateness_ms, 0.99))}",
        _shown(retried, lambda r: r.cpu_us, 1),
        _median(retried, lambda r: r.broker_us),
        f"{_median(retried, lambda r: r.records_per_retry, 1)} ({_median(retried, lambda r: r.offsets_per_retry, 1)})",
        f"{median(largest):,.0f}" if largest else "-",
        wrong,
        f"{len(done)} of {len(happy) + len(burst or ())}",
    )


def _shown(runs: list[Run], of: Callable[[Run], float], digits: int = 0) -> str:
    if not runs:
        return "-"
    found = estimate([of(run) for run in runs])
    return f"{found.median:,.{digits}f} ({found.low:,.{digits}f} to {found.high:,.{digits}f})"


def _median(runs: list[Run], of: Callable[[Run], float], digits: int = 0) -> str:
    return f"{median(of(run) for run in runs):,.{digits}f}" if runs else "-"


def _picture(stage: Stage, say: Say, burst: Runs) -> str | None:
    """Draw the last finished burst of each side; None where matplotlib is not installed."""
    series = {NAMES[side]: run.series for side, runs in burst.items() for run in runs[-1:] if run is not None}
    try:
        from benchmarks.plot import draw
    except ImportError:
        say(f"{NAME}: no picture, matplotlib is not installed (extra `bench`)")
        return None
    plan = stage.plan
    draw(stage.folder / PICTURE, series, f"{plan.burst_records:,} records fail once, delay {plan.burst_delay_ms:,} ms")
    return PICTURE

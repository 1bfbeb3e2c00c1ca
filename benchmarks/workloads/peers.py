"""The peers' table: all sides in one run, and the picture of lateness over time under a burst."""

from __future__ import annotations

from functools import partial
from statistics import median

from benchmarks.results import Result, figure
from benchmarks.runs import Run, Runs, attempt, burst_run, each, happy_run, healthy
from benchmarks.stage import Stage
from benchmarks.stats import estimate, turn_order

TITLE = "The peers' table"
OPTIONS = ("rounds", "happy_records", "burst_records", "burst_delay_ms", "burst_warmup")
NAMES = {
    "ours": "ours",
    "bare_faust": "bare Faust agent",
    "faust_table": "Faust table and timer",
    "pause_and_seek": "aiokafka, pause and seek",
}
PICTURE = "lateness.png"
_COLOURS = "#0072b2", "#d55e00", "#009e73"
"""Okabe and Ito's, which readers with any colour vision can tell apart: one for each side that retries."""
COLUMNS = (
    "side", "records/s", "CPU us a record", "retried records/s", "lateness p50 / p99 ms", "CPU us a retry",
    "broker's CPU us a retry", "broker records a retry", "RSS MiB", "wrong", "finished",
)  # fmt: skip


def run(stage: Stage) -> Result:
    """Run every side in each round, each round beginning with another side."""
    plan = stage.plan
    topic = stage.make_topic(stage.name("peers"))
    stage.fill(topic, healthy(plan.happy_records))
    happy: dict[str, Runs] = {side: [] for side in NAMES}
    burst: dict[str, Runs] = {side: [] for side in NAMES if side != "bare_faust"}
    for number in range(plan.rounds):
        label = f"round {number + 1}/{plan.rounds}"
        for side in turn_order(number, tuple(happy)):
            happy[side].append(attempt(stage, f"{label} happy {side}", partial(happy_run, stage, topic, side)))
        for side in turn_order(number, tuple(burst)):
            one = partial(burst_run, stage, side, count_records=True)
            burst[side].append(attempt(stage, f"{label} burst {side}", one))
    stage.drop_topics(topic)
    rates = {side: each(runs, "rate") for side, runs in burst.items()}
    rows = [_row(side, happy[side], burst.get(side, [])) for side in NAMES]
    return Result(
        figures=[figure(f"{NAMES[side]}, retried", "records/s", rate) for side, rate in rates.items()],
        tables=[{"columns": COLUMNS, "rows": rows}],
        notes=[
            "Records/s and CPU a record: nothing fails. Everything behind that: the burst. CPU a retry covers both "
            "deliveries and all between. Broker records: on all topics but the main one and Kafka's own, for each "
            "record of the burst; with transaction markers, which take an offset each, in brackets.",
            "Wrong: records lost / early / delivered too often, of all rounds; a rate beside any is void.",
            "The loop has one delay for all records of a topic, no look-up, no attempts limit and no dead letters.",
        ],
        samples={f"{side} retried records/s": rate for side, rate in rates.items()},
        picture=_picture(stage, burst),
    )


def _row(side: str, happy: Runs, burst: Runs) -> tuple[str, ...]:
    plain = [run for run in happy if run is not None]
    retried = [run for run in burst if run is not None]
    runs = [*plain, *retried]
    wrong = "/".join(str(sum(getattr(run.balance, what) for run in runs)) for what in ("lost", "early", "repeated"))
    return (
        NAMES[side],
        _interval(plain, "rate"),
        _interval(plain, "CPU us", 1),
        _interval(retried, "rate"),
        f"{_median(retried, 'p50')} / {_median(retried, 'p99')}",
        _interval(retried, "CPU us", 1),
        _median(retried, "broker us"),
        f"{_median(retried, 'records a retry', 1)} ({_median(retried, 'offsets a retry', 1)})",
        _median(retried or plain, "RSS MiB"),
        wrong,
        f"{len(runs)} of {len(happy) + len(burst)}",
    )


def _interval(runs: list[Run], name: str, digits: int = 0) -> str:
    if not runs:
        return "-"
    value = estimate([run.figures[name] for run in runs])
    return f"{value.median:,.{digits}f} ({value.low:,.{digits}f} to {value.high:,.{digits}f})"


def _median(runs: list[Run], name: str, digits: int = 0) -> str:
    return f"{median(run.figures[name] for run in runs):,.{digits}f}" if runs else "-"


def _picture(stage: Stage, burst: dict[str, Runs]) -> str | None:
    """Draw the last finished burst of each side; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        stage.say("no picture, matplotlib is not installed (extra `bench`)")
        return None
    canvas = Figure(figsize=(9, 4.5), layout="constrained")
    axes = canvas.add_subplot()
    for (side, runs), colour in zip(burst.items(), _COLOURS, strict=True):
        for run in runs[-1:]:
            if run is not None:
                times_s, late_ms = zip(*run.series, strict=True)
                axes.plot(times_s, [max(ms, 1.0) for ms in late_ms], ".", ms=2, color=colour, label=NAMES[side])
    axes.set_yscale("log")
    records, delay_ms = stage.plan.burst_records, stage.plan.burst_delay_ms
    axes.set_title(f"{records:,} records fail once, delay {delay_ms:,} ms")
    axes.set_xlabel("seconds since the first record was due")
    axes.set_ylabel("lateness, ms")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(markerscale=6, frameon=False)
    canvas.savefig(stage.folder / PICTURE, dpi=110)
    return PICTURE

"""Retry storm: a burst of records that all fail once. Ours against the obvious Faust table and the loop that pauses."""

from __future__ import annotations

from functools import partial

from benchmarks.results import Result, figure
from benchmarks.runs import Run, burst_run, each, in_pairs, void
from benchmarks.stage import Stage
from benchmarks.stats import pair_ratios

TITLE = "A burst that fails once"
OPTIONS = ("pairs", "warmups", "burst_records", "burst_delay_ms", "burst_warmup")
_AT_INFO = "ours at INFO"
SIDES = {
    "ours": "ours",
    _AT_INFO: _AT_INFO,
    "faust_table": "Faust table",
    "pause_and_seek": "aiokafka, pause and seek",
}
SHOWN = (
    ("", "retried records/s", "rate"),
    (", first to last", "s", "seconds"),
    (", first deliveries", "records/s", "first rate"),
    (", lateness p99", "ms", "p99"),
    (", CPU", "us a retried record", "CPU us"),
)


def run(stage: Stage) -> Result:
    """Run all sides in turn, each with its own topic of the same records."""
    plan = stage.plan
    runs = in_pairs(stage, tuple(SIDES), partial(_burst, stage))
    rates = {side: each(runs[side], "rate") for side in SIDES}
    costs = {side: each(runs[side], "CPU us") for side in ("ours", _AT_INFO)}
    wrong = ", ".join(f"{SIDES[side]} {void(runs[side])}" for side in SIDES)
    return Result(
        figures=[
            figure("ours / Faust table", "x", pair_ratios(rates["ours"], rates["faust_table"]), least=6),
            figure("ours / pause and seek", "x", pair_ratios(rates["ours"], rates["pause_and_seek"]), least=0.35),
            figure("CPU at INFO / at WARN", "x", pair_ratios(costs[_AT_INFO], costs["ours"]), most=1.1),
            *(
                figure(f"{SIDES[side]}{what}", unit, each(runs[side], name))
                for what, unit, name in SHOWN
                for side in SIDES
            ),
        ],
        notes=[
            f"{plan.burst_records:,} records, each fails once and waits {plan.burst_delay_ms:,} ms. Rate: records by "
            "the time from the first delivery to the last redelivery, less the delay. CPU covers both deliveries and "
            "all between.",
            f"Runs with a record lost, early or delivered too often: {wrong}.",
        ],
        samples={f"{side} retried records/s": rates[side] for side in SIDES},
    )


def _burst(stage: Stage, side: str) -> Run:
    return burst_run(stage, "ours", level="info") if side == _AT_INFO else burst_run(stage, side)

"""Retry storm: a burst of records that all fail once. Ours against the obvious Faust table."""

from __future__ import annotations

from functools import partial

from benchmarks.results import Result, figure
from benchmarks.runs import burst_run, each, in_pairs, void
from benchmarks.stage import Stage
from benchmarks.stats import pair_ratios

TITLE = "A burst that fails once"
OPTIONS = ("pairs", "warmups", "burst_records", "burst_delay_ms", "burst_warmup")
SIDES = {"ours": "ours", "faust_table": "Faust table"}
SHOWN = (
    ("", "retried records/s", "rate"),
    (", first to last", "s", "seconds"),
    (", first deliveries", "records/s", "first rate"),
    (", lateness p99", "ms", "p99"),
    (", CPU", "us a retried record", "CPU us"),
)


def run(stage: Stage) -> Result:
    """Run pairs, each side with its own topic of the same records."""
    plan = stage.plan
    runs = in_pairs(stage, tuple(SIDES), partial(burst_run, stage))
    rates = {side: each(runs[side], "rate") for side in SIDES}
    return Result(
        figures=[
            figure("ours / Faust table", "x", pair_ratios(rates["ours"], rates["faust_table"]), least=3),
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
            "Runs with a record lost, early or delivered too often: "
            f"ours {void(runs['ours'])}, Faust table {void(runs['faust_table'])}.",
        ],
        samples={f"{side} retried records/s": rates[side] for side in SIDES},
    )

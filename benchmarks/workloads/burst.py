"""Retry storm: a burst of records that all fail once. Ours against the obvious Faust table."""

from __future__ import annotations

from functools import partial

from benchmarks.results import Result, Target, figure
from benchmarks.runs import Run, Say, attempt, burst_run, each
from benchmarks.stage import Stage
from benchmarks.stats import pair_ratios, percentile, turn_order

NAME = "burst"
TITLE = "A burst that fails once"
OPTIONS = ("pairs", "warmups", "burst_records", "burst_delay_ms", "burst_warmup")
SIDES = ("ours", "faust_table")


def run(stage: Stage, say: Say) -> Result:
    """Run pairs, each side with its own topic of the same records; the side that begins alternates."""
    plan = stage.plan
    runs: dict[str, list[Run | None]] = {side: [] for side in SIDES}
    for number in range(-plan.warmups, plan.pairs):
        for side in turn_order(number % 2, SIDES):
            turn = "warm-up" if number < 0 else f"pair {number + 1}/{plan.pairs}"
            found = attempt(say, f"{NAME} {turn} {side}", partial(burst_run, stage, side))
            if number >= 0:
                runs[side].append(found)
    ours, table = runs["ours"], runs["faust_table"]
    rates = {side: each(runs[side], lambda r: r.rate) for side in SIDES}
    void = {side: sum(r is not None and not r.balance.sound for r in runs[side]) for side in SIDES}
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure("ours / Faust table", "x", pair_ratios(rates["ours"], rates["faust_table"]), Target(least=3)),
            figure("ours", "retried records/s", rates["ours"]),
            figure("Faust table", "retried records/s", rates["faust_table"]),
            figure("ours, first to last", "s", each(ours, lambda r: r.done_s)),
            figure("Faust table, first to last", "s", each(table, lambda r: r.done_s)),
            figure("ours, first deliveries", "records/s", each(ours, lambda r: r.first_rate)),
            figure("Faust table, first deliveries", "records/s", each(table, lambda r: r.first_rate)),
            figure("ours, lateness p99", "ms", each(ours, lambda r: percentile(r.lateness_ms, 0.99))),
            figure("Faust table, lateness p99", "ms", each(table, lambda r: percentile(r.lateness_ms, 0.99))),
            figure("ours, CPU", "us a retried record", each(ours, lambda r: r.cpu_us)),
            figure("Faust table, CPU", "us a retried record", each(table, lambda r: r.cpu_us)),
        ],
        notes=[
            f"{plan.burst_records:,} records, each fails once and waits {plan.burst_delay_ms:,} ms. Rate: records by "
            "the time from the first delivery to the last redelivery, less the delay. CPU covers both deliveries and "
            "all between.",
            "Runs with a record lost, early or delivered too often: "
            f"ours {void['ours']}, Faust table {void['faust_table']}.",
        ],
        samples={f"{side} retried records/s": rates[side] for side in SIDES},
    )

"""What a way to retry costs, and lists save: by reference against copies, keys beside held ones, lists of records."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.records import Wanted
from benchmarks.results import Result, figure
from benchmarks.runs import burst_run, each, happy_run, healthy, in_pairs, void
from benchmarks.stage import Stage
from benchmarks.stats import pair_ratios
from benchmarks.workloads.waiting import ALWAYS, DAY_MS

TITLE = "Ways to retry"
OPTIONS = (
    "pairs",
    "warmups",
    "happy_records",
    "held_keys",
    "list_records",
    "list_size",
    "list_call_ms",
    "burst_records",
    "burst_delay_ms",
    "burst_warmup",
)


def run(stage: Stage) -> Result:
    """Run pairs of bursts, then pairs over two topics, of which one begins with records that wait for a day."""
    plan = stage.plan
    bursts = in_pairs(stage, ("copy", "reference"), lambda payload: burst_run(stage, "ours", payload=payload))
    held = {"some held": plan.held_keys, "none held": 0}
    topics = {kind: stage.make_topic(stage.name("keys")) for kind in held}
    for kind, topic in topics.items():
        stage.say(f"publishing {plan.happy_records:,} records, {kind}")
        stage.fill(topic, _beside(held[kind], plan.happy_records))
    keys = in_pairs(stage, tuple(held), lambda kind: happy_run(stage, topics[kind], "ours", order="key"))
    stage.drop_topics("keys")
    work = stage.make_topic(stage.name("lists"))
    stage.fill(work, healthy(plan.list_records))
    sizes = {"lists": plan.list_size, "one by one": 0}
    lists = in_pairs(
        stage,
        tuple(sizes),
        lambda kind: happy_run(
            stage, work, "ours", count=plan.list_records, batch=sizes[kind], call_ms=plan.list_call_ms
        ),
    )
    stage.drop_topics("lists")
    rates = {kind: each(runs, "rate") for kind, runs in (bursts | keys | lists).items()}
    return Result(
        figures=[
            figure("by reference / as copies", "x", pair_ratios(rates["reference"], rates["copy"]), least=0.5),
            figure("by reference", "retried records/s", rates["reference"]),
            figure("as copies", "retried records/s", rates["copy"]),
            figure(
                f"order by key, {plan.held_keys:,} keys held / none held",
                "x",
                pair_ratios(rates["some held"], rates["none held"]),
                least=0.95,
            ),
            figure("order by key, none held", "records/s", rates["none held"]),
            figure(
                f"lists of {plan.list_size} / one by one, {plan.list_call_ms} ms a call",
                "x",
                pair_ratios(rates["lists"], rates["one by one"]),
                least=3.0,
            ),
            figure(f"one by one, {plan.list_call_ms} ms a call", "records/s", rates["one by one"]),
        ],
        notes=[
            f'A burst of {plan.burst_records:,} records as above, with payload="reference" and without.',
            f"{plan.happy_records:,} records with a key each, of which the first {plan.held_keys:,} fail and wait for "
            "a day, or none; the first fifth of each run is not counted.",
            f"{plan.list_records:,} records, none of which fails, by a handler that waits {plan.list_call_ms} ms in "
            f"each call, as for the answer of a service: once for {plan.list_size} records, or for each. That is what "
            "lists are for. A handler that waits for nothing gains what a call of ours costs: 1.5 x in memory, without "
            "a broker.",
            "Runs in which a record was lost, early or delivered too often: "
            f"{sum(map(void, (bursts | keys | lists).values()))}.",
        ],
        samples={f"{kind}, records/s": values for kind, values in rates.items()},
    )


def _beside(held: int, count: int) -> Iterator[Wanted]:
    return (Wanted(n, ALWAYS if n < held else 0, DAY_MS) for n in range(count))

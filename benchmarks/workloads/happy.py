"""Happy path: nothing fails, a plain async handler called for each record. Ours against a stock bare Faust agent."""

from __future__ import annotations

from functools import partial

from benchmarks.results import Result, figure
from benchmarks.runs import each, happy_run, healthy, in_pairs, void
from benchmarks.stage import Stage
from benchmarks.stats import pair_ratios

TITLE = "Nothing fails"
OPTIONS = ("pairs", "warmups", "happy_records")


def run(stage: Stage) -> Result:
    """Run pairs over one topic, each side in a fresh group."""
    plan = stage.plan
    topic = stage.make_topic(stage.name("happy"))
    stage.say(f"publishing {plan.happy_records:,} records")
    stage.fill(topic, healthy(plan.happy_records))
    runs = in_pairs(stage, ("ours", "bare_faust"), partial(happy_run, stage, topic))
    stage.drop_topics(topic)
    ours, bare = each(runs["ours"], "rate"), each(runs["bare_faust"], "rate")
    return Result(
        figures=[
            figure("ours / bare Faust agent", "x", pair_ratios(ours, bare), least=7),
            figure("ours", "records/s", ours),
            figure("bare Faust agent", "records/s", bare),
            figure("ours, CPU", "us a record", each(runs["ours"], "CPU us")),
            figure("bare Faust agent, CPU", "us a record", each(runs["bare_faust"], "CPU us")),
        ],
        notes=[
            f"{plan.happy_records:,} records published beforehand on one topic that both sides read in fresh groups; "
            "the first fifth of each run is not counted. Then the committed offsets have to reach the topic's ends.",
            f"Runs in which a record was lost or came twice: {sum(map(void, runs.values()))}.",
        ],
        samples={"ours records/s": ours, "bare_faust records/s": bare},
    )

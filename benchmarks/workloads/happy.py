"""Happy path: nothing fails, a plain async handler called for each record. Ours against a stock bare Faust agent."""

from __future__ import annotations

from benchmarks.results import Result, Target, figure
from benchmarks.runs import Say, attempt, happy_run, healthy
from benchmarks.stage import Stage
from benchmarks.stats import pair_ratios, turn_order

NAME = "happy"
TITLE = "Nothing fails"
OPTIONS = ("pairs", "warmups", "happy_records")
SIDES = ("ours", "bare_faust")


def run(stage: Stage, say: Say) -> Result:
    """Run pairs over one topic, each side in a fresh group; the side that begins alternates."""
    plan = stage.plan
    topic = stage.make_topic(stage.name(NAME))
    say(f"{NAME}: publishing {plan.happy_records:,} records")
    stage.fill(topic, healthy(plan.happy_records))
    rates: dict[str, list[float | None]] = {side: [] for side in SIDES}
    costs: dict[str, list[float | None]] = {side: [] for side in SIDES}
    void = 0
    for number in range(-plan.warmups, plan.pairs):
        for side in turn_order(number % 2, SIDES):
            label = f"{NAME} {_turn(number, plan.pairs)} {side}"
            found = attempt(say, label, lambda side=side: happy_run(stage, side, topic, plan.happy_records))  # type: ignore[misc]  # a default argument binds the loop variable
            if number >= 0:
                rates[side].append(None if found is None else found.rate)
                costs[side].append(None if found is None else found.cpu_us)
                void += found is not None and not found.balance.sound
    stage.drop_topics(topic)
    return Result(
        name=NAME,
        title=TITLE,
        figures=[
            figure("ours / bare Faust agent", "x", pair_ratios(rates["ours"], rates["bare_faust"]), Target(least=4)),
            figure("ours", "records/s", rates["ours"]),
            figure("bare Faust agent", "records/s", rates["bare_faust"]),
            figure("ours, CPU", "us a record", costs["ours"]),
            figure("bare Faust agent, CPU", "us a record", costs["bare_faust"]),
        ],
        notes=[
            f"{plan.happy_records:,} records published beforehand on one topic that both sides read in fresh groups; "
            "the first fifth of each run is not counted. Then the committed offsets have to reach the topic's ends.",
            f"Runs in which a record was lost or came twice: {void}.",
        ],
        samples={f"{side} records/s": rates[side] for side in SIDES},
    )


def _turn(number: int, pairs: int) -> str:
    return "warm-up" if number < 0 else f"pair {number + 1}/{pairs}"

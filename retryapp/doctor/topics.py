"""The topics: the plan's differences, replicas, the main topic's retention, and what nobody reads any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from retryapp.core.durations import duration_text, format_duration_ms
from retryapp.core.jobs import Level
from retryapp.core.text import counted
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Finding, note, numbers, ok, problem, warning
from retryapp.kafka import Action, Plan, PlanStep, TopicState


def judge_plan(plan: Plan) -> Iterator[Finding]:
    """Report the plan: one line for each handler's topics, and one for each topic that does not serve."""
    for main, listed in groupby(plan.steps, key=lambda step: step.main):
        steps = list(listed)
        name = f"topics of {main}"
        missing = [step.topic for step in steps if step.action is Action.CREATE]
        fine = [step for step in steps if step.action is Action.OK]
        if fine:
            seen = f"{len(fine)} of {len(steps)} ok, {counted(steps[0].partitions or 0, 'partition')}"
            expected = "names, partitions, clean-up, retention, sizes, replicas as in 'retryapp plan -A MODULE'"
            yield ok(name, seen, expected)
        if missing:
            seen, remedy = f"missing: {', '.join(missing)}", "A worker creates them when it starts"
            if any(step.topic != main and step.action is not Action.CREATE for step in steps):  # so workers have run
                why = "if somebody has deleted them, running workers settle no record that needs them"
                yield warning(
                    name, seen, why=why, remedy=f"Create them now: 'retryapp topics create -A MODULE'. {remedy}"
                )
            else:
                yield note(name, seen, remedy=f"{remedy}; 'retryapp topics create -A MODULE' does too")
        for step in steps:
            yield from _refused(step)


def _refused(step: PlanStep) -> Iterator[Finding]:
    name = f"topic {step.topic}"
    if step.action is Action.MISSING:
        remedy = step.why["partitions"]
        expected = (
            "the main topic of a handler" if step.topic == step.main else f"the handler of {step.main} publishes to it"
        )
        yield problem(name, "does not exist", expected=expected, why="no worker starts", remedy=remedy)
    for found in step.problems:
        seen = f"{found.setting}={found.have}"
        yield problem(name, seen, expected=found.want, why=found.why, remedy=found.remedy)


def judge_main_retention(
    topologies: Sequence[HandlerTopology], states: Mapping[str, TopicState], downtime_ms: int
) -> Iterator[Finding]:
    """Report main topics that delete records before workers that are down as long as allowed read them."""
    for main in [topology.main for topology in topologies if topology.main in states]:
        retention_ms = states[main].deletes_after_ms
        if retention_ms is None or retention_ms >= downtime_ms:
            continue
        yield warning(
            f"retention of {main}",
            f"retention.ms={retention_ms}",
            expected=f"{downtime_ms} or more (downtime {format_duration_ms(downtime_ms)})",
            why="unread records are deleted before workers that are down for that long are back",
            remedy=f"Set it: kafka-configs.sh --alter --topic {main} --add-config retention.ms={downtime_ms}; "
            "or set downtime= of Retries to what you allow",
        )


def judge_level(main: str, levels: Mapping[int, Level], *, circuit: str | None = None, now_ms: int) -> Finding:
    """Report what somebody has set, and what ends it: a pause, or a forced outage of a circuit (empty: the own one)."""
    ends, named = "handler resume" if circuit is None else "outage close", f" --circuit {circuit}" if circuit else ""
    first = min(levels.values(), key=lambda each: each.since_ms)
    for_ms = max(0, now_ms - first.since_ms)
    return warning(
        f"circuit {circuit} of {main}" if circuit else f"handler of {main}",
        f"{first.text}, for {_length(for_ms)}, {counted(len(levels), 'partition')}",
        expected="deliveries",
        why=f"what has failed because of {circuit} is not delivered" if circuit else "nothing is delivered",
        remedy=f"Have it go on: 'retryapp {ends} -A MODULE --topic {main}{named} --why TEXT'",
    )


def judge_unread(main: str, ages_ms: Mapping[int, int], retention_ms: int) -> Finding:
    """Report partitions with an unread record that retention deletes before long, whatever holds it back."""
    return problem(
        f"unread records of {main}",
        f"the oldest is {_length(max(ages_ms.values()))} old, in partition {numbers(sorted(ages_ms))}",
        expected=f"all read within {_length(retention_ms // 2)}, half of its retention.ms",
        why=f"the topic deletes records after {_length(retention_ms)}, read or not",
        remedy="See what holds them back: a pause, an outage, a stopped sequence ('retryapp pending list -A MODULE "
        f"--topic {main}'), a lane that is closed, too few workers. For more time, raise it: kafka-configs.sh --alter "
        f"--topic {main} --add-config retention.ms=...",
    )


def _length(length_ms: int) -> str:
    return duration_text(length_ms // 1_000 * 1_000)


def judge_replicas(topics: Mapping[str, TopicState]) -> Iterator[Finding]:
    """Report missing leaders, replicas out of sync, and topics that may elect a leader that lacks records."""
    fine = 0
    for topic, state in sorted(topics.items()):
        found = list(_replicas(f"topic {topic}", state))
        fine += not found
        yield from found
    if fine:
        yield ok("replicas", f"{counted(fine, 'topic')} with a leader and all replicas in sync")


def _replicas(name: str, state: TopicState) -> Iterator[Finding]:
    if state.leaderless:
        yield problem(
            name,
            f"no leader of partition {numbers(list(state.leaderless))}",
            expected="a leader for each partition",
            why="it can be neither read nor written",
            remedy="Bring the brokers that have it back",
        )
    least = int(state.config.get("min.insync.replicas", "1"))
    short = [number for number, in_sync in state.lagging.items() if in_sync < least]
    if short:
        yield problem(
            name,
            f"fewer than {counted(least, 'replica')} in sync of partition {numbers(short)}",
            expected=f"min.insync.replicas={least} or more",
            why="writes are refused until a replica is back",
            remedy="Bring the brokers that have them back",
        )
    elif 1 < least >= state.replication:
        always = ", and always by brokers before Kafka 3.7" if least > state.replication else ""
        yield warning(
            name,
            f"min.insync.replicas={least} with {counted(state.replication, 'replica')}",
            expected="fewer than there are replicas",
            why=f"writes are refused while one broker is away{always}",
            remedy="Add replicas with kafka-reassign-partitions.sh, or lower it with kafka-configs.sh",
        )
    elif state.lagging:
        yield warning(
            name,
            f"replicas out of sync of partition {numbers(list(state.lagging))}",
            expected="every replica in sync",
            why="losing one more broker may stop it",
            remedy="Look for a broker that is down or slow; after its start it takes a while",
        )
    setting = "unclean.leader.election.enable"
    if state.replication > 1 and state.config.get(setting, "false").lower() == "true":
        yield warning(
            name,
            f"{setting}=true",
            expected="false",
            why="a replica that lacks records may become leader: acknowledged records and offsets are lost",
            remedy=f"Set it: kafka-configs.sh --alter --topic {state.name} --add-config {setting}=false",
        )


def judge_old_handler(main: str, waiting: int | None) -> Finding:
    """Report the topics of a handler that the application has no more; a warning where records wait in its table.

    None: there was no time to count them.
    """
    name, seen = f"handler of {main}", "this app has no such handler"
    if waiting == 0:
        return note(name, f"{seen}, but its topics exist; nothing waits in them", remedy="Delete its topics")
    rows = "may have waiting records (`retryapp doctor` counts them)"
    if waiting is not None:
        rows = f"has {counted(waiting, 'waiting record')}"
    return warning(
        name,
        f"{seen}, and its table {rows}",
        why="they come back only when the handler does",
        remedy="Run that handler until nothing waits, or delete its topics to give the records up",
    )

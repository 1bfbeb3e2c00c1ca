"""The topics: the plan's differences, replicas, the main topic's retention, and what nobody reads any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from retryapp.core.durations import format_duration_ms
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.doctor.cluster import ReplicaFacts
from retryapp.doctor.findings import Finding, counted, note, numbers, ok, problem, warning
from retryapp.kafka import Action, Plan, PlanStep, TopicState


def known_tiers(topology: HandlerTopology, names: Sequence[str]) -> HandlerTopology:
    """Return a handler that was found by its topics alone, with the delays that its retry topics are named after."""
    delays = tuple(filter(None, map(topology.retry_delay_ms, names)))
    if not delays:
        return topology
    return HandlerTopology(topology.group, topology.main, Tiers.PER_DELAY, delays)


def judge_plan(plan: Plan) -> Iterator[Finding]:
    """Report the plan: one line for each handler's topics, and one for each topic that does not serve."""
    for main, listed in groupby(plan.steps, key=lambda step: step.main):
        steps = list(listed)
        name = f"topics of {main}"
        missing = [step.topic for step in steps if step.action is Action.CREATE]
        fine = [step for step in steps if step.action is Action.OK]
        if fine:
            seen = f"{len(fine)} of {len(steps)} ok, {counted(steps[0].partitions or 0, 'partition')}"
            yield ok(name, seen, "names, partitions, clean-up, retention, sizes, replicas as in 'retryapp plan'")
        if missing:
            remedy = "A worker creates them when it starts; 'retryapp topics create' does too"
            yield note(name, f"missing: {', '.join(missing)}", remedy=remedy)
        for step in steps:
            yield from _refused(step)


def _refused(step: PlanStep) -> Iterator[Finding]:
    name = f"topic {step.topic}"
    if step.action is Action.MISSING:
        remedy = step.why["partitions"]
        yield problem(
            name, "does not exist", expected="the main topic of a handler", why="no worker starts", remedy=remedy
        )
    for found in step.problems:
        seen = f"{found.setting}={found.have}"
        yield problem(name, seen, expected=found.want, why=found.why, remedy=found.remedy)


def judge_main_retention(
    topologies: Sequence[HandlerTopology], states: Mapping[str, TopicState], downtime_ms: int
) -> Iterator[Finding]:
    """Report main topics that delete records before workers that are down as long as allowed read them."""
    for main in [topology.main for topology in topologies if topology.main in states]:
        config = states[main].config
        retention_ms = int(config.get("retention.ms", "-1"))
        if "delete" not in config.get("cleanup.policy", "") or not 0 <= retention_ms < downtime_ms:
            continue
        yield warning(
            f"retention of {main}",
            f"retention.ms={retention_ms}",
            expected=f"{downtime_ms} or more (downtime {format_duration_ms(downtime_ms)})",
            why="unread records are deleted before workers that are down for that long are back",
            remedy=f"Set it: kafka-configs.sh --alter --topic {main} --add-config retention.ms={downtime_ms}; "
            "or set downtime= of Retries to what you allow",
        )


def judge_replicas(topics: Mapping[str, ReplicaFacts], states: Mapping[str, TopicState]) -> Iterator[Finding]:
    """Report missing leaders, replicas out of sync, and topics that may elect a leader that lacks records."""
    fine = 0
    for topic, facts in sorted(topics.items()):
        config = states[topic].config if topic in states else {}
        found = list(_replicas(f"topic {topic}", topic, facts, config))
        fine += not found
        yield from found
    if fine:
        yield ok("replicas", f"{counted(fine, 'topic')} with a leader and all replicas in sync")


def _replicas(name: str, topic: str, facts: ReplicaFacts, config: Mapping[str, str]) -> Iterator[Finding]:
    if facts.leaderless:
        yield problem(
            name,
            f"no leader of partition {numbers(list(facts.leaderless))}",
            expected="a leader for each partition",
            why="it can be neither read nor written",
            remedy="Bring the brokers that have it back",
        )
    least = int(config.get("min.insync.replicas", "1"))
    short = [number for number, in_sync in facts.lagging.items() if in_sync < least]
    if short:
        yield problem(
            name,
            f"fewer than {least} replicas in sync of partition {numbers(short)}",
            expected=f"min.insync.replicas={least} or more",
            why="writes are refused until a replica is back",
            remedy="Bring the brokers that have them back",
        )
    elif facts.lagging:
        yield warning(
            name,
            f"replicas out of sync of partition {numbers(list(facts.lagging))}",
            expected="every replica in sync",
            why="losing one more broker may stop it",
            remedy="Look for a broker that is down or slow; after its start it takes a while",
        )
    setting = "unclean.leader.election.enable"
    if facts.replication > 1 and config.get(setting, "false").lower() == "true":
        yield warning(
            name,
            f"{setting}=true",
            expected="false",
            why="a replica that lacks records may become leader: acknowledged records and offsets are lost",
            remedy=f"Set it: kafka-configs.sh --alter --topic {topic} --add-config {setting}=false",
        )


def old_retry_topics(topologies: Sequence[HandlerTopology], names: Sequence[str]) -> dict[str, str]:
    """Return the retry topics that the handlers' policies have no more → their main topic."""
    old: dict[str, str] = {}
    for topology in topologies:
        retry_topics = {name for name in names if topology.retry_delay_ms(name) is not None}
        old |= dict.fromkeys(sorted(retry_topics - {*topology.owned}), topology.main)
    return old


def judge_old_retry_topic(topic: str, main: str) -> Finding:
    """Report a retry topic that a policy has no more."""
    return note(
        f"topic {topic}",
        f"the policy of {main} has no such delay any more",
        why="it is history: records that waited for that delay are in the pending table and come back",
        remedy="Delete it when its history is archived or not needed: kafka-topics.sh --delete",
    )


def judge_old_handler(main: str, waiting: int) -> Finding:
    """Report the topics of a handler that the application has no more; a warning where records wait in its table."""
    name, seen = f"handler of {main}", "this app has no such handler"
    if not waiting:
        return note(name, f"{seen}, but its topics exist; nothing waits in them", remedy="Delete its topics")
    return warning(
        name,
        f"{seen}, and {counted(waiting, 'record')} wait in its table",
        why="they come back only when the handler does",
        remedy="Run that handler until nothing waits, or delete its topics to give the records up",
    )

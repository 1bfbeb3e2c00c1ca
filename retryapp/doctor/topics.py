"""The topics: what the plan says, the copies that are in sync, and what only a look at the main topic shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from retryapp.core.durations import format_duration_ms, parse_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.doctor.cluster import ReplicaFacts
from retryapp.doctor.findings import Finding, Severity, counted, note, ok
from retryapp.kafka import Action, Plan, PlanStep, TopicState

RETRY_INFIX: Final = ".retry."


def known_tiers(topology: HandlerTopology, names: Sequence[str]) -> HandlerTopology:
    """Return a handler that was found by its topics alone, with the delays that its retry topics are named after.

    Args:
        topology: as `find_handlers` gives it: names only.
        names: all topics of the cluster.
    """
    prefix = f"{topology.prefix}{RETRY_INFIX}"
    delays = []
    for name in names:
        if name.startswith(prefix):
            try:
                delays.append(parse_duration_ms(name.removeprefix(prefix)))
            except InvalidDurationError:
                continue  # somebody's topic that only looks like ours
    if not delays:
        return topology
    return HandlerTopology(topology.group, topology.main, Tiers.PER_DELAY, tuple(delays))


def judge_plan(plan: Plan, *, waits_known: bool = True) -> Iterator[Finding]:
    """Say what the plan says: one line for each handler's topics, and one for each that does not serve.

    Args:
        plan: what was compared.
        waits_known: the longest wait of each policy is in it; False: the handlers were found by their topics.
    """
    for main, listed in groupby(plan.steps, key=lambda step: step.main):
        steps = list(listed)
        to_create = [step.topic for step in steps if step.action is Action.CREATE]
        fine = [step for step in steps if step.action is Action.OK]
        kept = _kept(steps) if waits_known else ", retention not measured against the longest wait: say -A"
        if fine:
            partitions = counted(steps[0].partitions or 0, "partition")
            yield ok(
                f"topics of {main}",
                f"{len(fine)} of {len(steps)} as they have to be, {partitions}{kept}",
                "names, partitions, clean-up, retention, sizes, copies as 'retryapp plan' says",
            )
        if to_create:
            yield note(
                f"topics of {main}",
                f"not there yet: {', '.join(to_create)}",
                remedy="A worker makes them at its start, and so does 'retryapp topics create'",
            )
        for step in steps:
            yield from _refused(step)


def _refused(step: PlanStep) -> Iterator[Finding]:
    if step.action is Action.MISSING:
        yield Finding(
            name=f"topic {step.topic}",
            severity=Severity.PROBLEM,
            seen="it does not exist",
            expected="the main topic of a handler",
            why="no worker starts",
            remedy=step.why["partitions"],
        )
    for problem in step.problems:
        yield Finding(
            name=f"topic {step.topic}",
            severity=Severity.PROBLEM,
            seen=f"{problem.setting}={problem.have}",
            expected=problem.want,
            why=problem.why,
            remedy=problem.remedy,
        )


def _kept(steps: Sequence[PlanStep]) -> str:
    """Say the retention of the retry topics: the allowed downtime plus the longest wait."""
    retention = next((s.config["retention.ms"] for s in steps if s.role == "retry" and "retention.ms" in s.config), "")
    return f", retries kept for {format_duration_ms(int(retention))}" if retention.isdigit() else ""


def judge_main_retention(
    topologies: Sequence[HandlerTopology], states: Mapping[str, TopicState], downtime_ms: int
) -> Iterator[Finding]:
    """Say which main topics forget records before workers that are down for as long as is allowed read them.

    Args:
        topologies: the handlers.
        states: the topics that exist.
        downtime_ms: longest time that all workers may be down.
    """
    for topology in topologies:
        config = states[topology.main].config if topology.main in states else {}
        kept_ms = int(config.get("retention.ms", "-1"))
        if "delete" not in config.get("cleanup.policy", "") or not 0 <= kept_ms < downtime_ms:
            continue
        down = format_duration_ms(downtime_ms)
        yield Finding(
            name=f"retention of {topology.main}",
            severity=Severity.WARNING,
            seen=f"retention.ms={kept_ms}",
            expected=f"{downtime_ms} or more (downtime {down})",
            why="records that nobody has read are deleted before workers that are down for so long are back",
            remedy=f"Set it: kafka-configs.sh --alter --topic {topology.main} --add-config retention.ms={downtime_ms}; "
            "or say downtime= of Retries as long as you allow",
        )


def judge_replicas(topics: Mapping[str, ReplicaFacts], states: Mapping[str, TopicState]) -> Iterator[Finding]:
    """Say where copies lag or nobody leads, and where a topic may choose a leader that lacks records.

    Args:
        topics: the topics that exist.
        states: their settings.
    """
    fine = 0
    for name, facts in sorted(topics.items()):
        state = states.get(name)
        least = int(state.config.get("min.insync.replicas", "1")) if state is not None else 1
        found = [*_copies(name, facts, least), *_elections(name, state, facts)]
        fine += not found
        yield from found
    if fine:
        yield ok("replicas", f"{counted(fine, 'topic')} with a leader and every copy in sync")


def _copies(name: str, facts: ReplicaFacts, least: int) -> Iterator[Finding]:
    if facts.leaderless:
        yield Finding(
            name=f"topic {name}",
            severity=Severity.PROBLEM,
            seen=f"no leader of partition {_numbers(facts.leaderless)}",
            expected="a leader for each partition",
            why="it can neither be read nor written",
            remedy="Bring the brokers that have it back",
        )
    short = [number for number, in_sync in facts.lagging.items() if in_sync < least]
    if short:
        yield Finding(
            name=f"topic {name}",
            severity=Severity.PROBLEM,
            seen=f"fewer than {least} copies in sync of partition {_numbers(short)}",
            expected=f"min.insync.replicas={least} or more",
            why="writes are refused until a copy is back",
            remedy="Bring the brokers that have them back",
        )
    elif facts.lagging:
        yield Finding(
            name=f"topic {name}",
            severity=Severity.WARNING,
            seen=f"copies behind of partition {_numbers(facts.lagging)}",
            expected="every copy in sync",
            why="one broker more that is lost may stop it",
            remedy="Look for a broker that is down or slow; after its start it takes a while",
        )


def _elections(name: str, state: TopicState | None, facts: ReplicaFacts) -> Iterator[Finding]:
    setting = "unclean.leader.election.enable"
    if state is None or facts.replication < 2 or state.config.get(setting, "false").lower() != "true":
        return
    yield Finding(
        name=f"topic {name}",
        severity=Severity.WARNING,
        seen=f"{setting}=true",
        expected="false",
        why="a copy that lacks records may become leader: acknowledged records and offsets go back",
        remedy=f"Set it: kafka-configs.sh --alter --topic {name} --add-config {setting}=false",
    )


def _numbers(partitions: Sequence[int] | Mapping[int, int] | tuple[int, ...]) -> str:
    numbers = sorted(partitions)
    return ", ".join(map(str, numbers[:10])) + (f" and {len(numbers) - 10} more" if len(numbers) > 10 else "")

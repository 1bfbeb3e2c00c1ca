"""The consumer group: who is in it, and whether its offsets still point into its topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from retryapp.core.topology import HandlerTopology
from retryapp.doctor.cluster import GroupFacts
from retryapp.doctor.findings import Finding, Severity, counted, note, ok
from retryapp.kafka import OffsetRange

Committed = Mapping[str, Mapping[int, int]]
Ranges = Mapping[str, Mapping[int, OffsetRange]]


def judge_group(name: str, facts: GroupFacts, *, partitions: int, protocols: Collection[str]) -> Iterator[Finding]:
    """Say what state the group is in.

    Kafka does not tell the generation of a group of the classic protocol, which Faust uses.

    Args:
        name: of the group.
        facts: what was told.
        partitions: the largest partition count of its main topics.
        protocols: names of assignors under which workers join; each delivery mode has its own.
    """
    members = len(facts.hosts)
    hosts = ", ".join(sorted(set(facts.hosts)))
    seen = f"{facts.state}, {counted(members, 'member')}{f' on {hosts}' if hosts else ''}"
    subject = f"group {name}"
    if facts.kind == "consumer" or (facts.protocol and facts.protocol not in protocols):
        yield Finding(
            name=subject,
            severity=Severity.PROBLEM,
            seen=f"{seen}, protocol {facts.protocol or facts.kind}",
            expected=f"workers, whose protocol is {' or '.join(sorted(protocols))}",
            why="another program uses this group id, or workers of the other delivery mode; no worker can join",
            remedy="Stop what runs there, or give it or the app (faust.App id) another group",
        )
    elif facts.state in {"empty", "dead"}:
        yield note(subject, "no worker runs" if facts.state == "empty" else "no worker ever ran, or long ago")
    elif facts.state != "stable":
        yield note(
            subject,
            f"{seen}, protocol {facts.protocol or 'not agreed'}",
            expected="stable",
            why="members come or go; one that stays so has a member that does not answer",
            remedy="Look again in a minute",
        )
    elif members > partitions > 0:
        yield note(
            subject,
            seen,
            expected=f"{partitions} members or fewer (partitions)",
            why="the others have nothing to do but to take over",
        )
    else:
        yield ok(subject, f"{seen}, protocol {facts.protocol}")


def judge_offsets(
    topologies: Sequence[HandlerTopology],
    committed: Committed,
    ranges: Ranges,
    lost: Callable[[str, int], bool],
) -> Iterator[Finding]:
    """Say which committed offsets are missing, or point outside their topic.

    Args:
        topologies: the handlers.
        committed: topic → partition → committed offset.
        ranges: topic → partition → what the topic keeps, of the topics that exist.
        lost: asked for a changelog and a partition whose offsets are all missing: did anything ever wait there, and
            does the changelog not say how far the lane had come?
    """
    for topology in topologies:
        topics = [topic for topic in topology.consumed if topic in ranges]
        found = [
            *_outside(topics, committed, ranges),
            *_missing(topology, topics, committed, ranges, lost),
        ]
        yield from found
        if topics and not found:
            count = sum(len(committed.get(topic, {})) for topic in topics)
            yield ok(f"offsets of {topology.main}", f"{count} committed, all within what the topics keep")


def _outside(topics: Sequence[str], committed: Committed, ranges: Ranges) -> Iterator[Finding]:
    for topic in topics:
        for number, offset in sorted(committed.get(topic, {}).items()):
            kept = ranges[topic].get(number)
            if kept is None or kept.begin <= offset <= kept.end:
                continue
            gone = offset < kept.begin
            lost = f"{kept.begin - offset} records were deleted before the group read them"
            yield Finding(
                name=f"offset of {topic}[{number}]",
                severity=Severity.PROBLEM,
                seen=str(offset),
                expected=f"{kept.begin} to {kept.end}",
                why=lost if gone else "the topic was made anew, or lost its end: what it has now would be skipped",
                remedy="A lane refuses to start there. Decide where to go on, with all workers stopped: "
                f"kafka-consumer-groups.sh --reset-offsets --topic {topic}:{number} --to-earliest --execute",
            )


def _missing(
    topology: HandlerTopology,
    topics: Sequence[str],
    committed: Committed,
    ranges: Ranges,
    lost: Callable[[str, int], bool],
) -> Iterator[Finding]:
    numbers = sorted({number for topic in topics for number in ranges[topic]})
    bare = [n for n in numbers if all(n not in committed.get(topic, {}) for topic in topics)]
    forgotten = [n for n in bare if lost(topology.pending_changelog, n)]
    subject = f"offsets of {topology.main}"
    if forgotten:
        yield Finding(
            name=subject,
            severity=Severity.PROBLEM,
            seen=f"none for partition {', '.join(map(str, forgotten))}, where records have waited",
            expected="committed offsets",
            why="the group was away for longer than offsets.retention.minutes, or its offsets were deleted",
            remedy="A lane refuses to start there. Decide where to go on, with all workers stopped: "
            f"kafka-consumer-groups.sh --reset-offsets --topic {topology.main} with --to-datetime or --to-earliest",
        )
    elif bare:
        yield note(
            subject,
            f"none yet for {len(bare)} of {len(numbers)} partitions",
            why="a worker sets them: anew, or where it was by its changelog",
        )

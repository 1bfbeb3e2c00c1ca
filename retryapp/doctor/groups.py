"""The consumer group: who is in it, and whether its offsets still point into its topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What the changelog of a partition says of its lane's past."""

    rows: bool = False
    """Records have waited there."""
    written: Mapping[str, int] = field(default_factory=dict)
    """Topic → next offset that the lane wrote down last; empty: it wrote none."""


Traced = Callable[[HandlerTopology, int], Trace]
"""Reads the changelog of a handler and partition."""


def judge_offsets(
    topologies: Sequence[HandlerTopology], committed: Committed, ranges: Ranges, traced: Traced
) -> Iterator[Finding]:
    """Say which committed offsets are missing, or point outside their topic.

    Args:
        topologies: the handlers.
        committed: topic → partition → committed offset.
        ranges: topic → partition → what the topic keeps, of the topics that exist.
        traced: asked for partitions where offsets are missing.
    """
    for topology in topologies:
        topics = [topic for topic in topology.consumed if topic in ranges]
        found = [
            *_outside(topics, committed, ranges),
            *_missing(topology, topics, committed, ranges, traced),
            *_deleted(topology, topics, committed, ranges, traced),
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
    topology: HandlerTopology, topics: Sequence[str], committed: Committed, ranges: Ranges, traced: Traced
) -> Iterator[Finding]:
    """Judge partitions that have no offset at all: new ones, and those that the brokers have forgotten."""
    numbers = sorted({number for topic in topics for number in ranges[topic]})
    bare = {
        number: traced(topology, number)
        for number in numbers
        if all(number not in committed.get(topic, {}) for topic in topics)
    }
    expired = [number for number, trace in bare.items() if trace.written]
    lost = [number for number, trace in bare.items() if trace.rows and not trace.written]
    new = [number for number in bare if number not in {*expired, *lost}]
    subject = f"offsets of {topology.main}"
    if lost:
        yield Finding(
            name=subject,
            severity=Severity.PROBLEM,
            seen=f"none for partition {', '.join(map(str, lost))}, where records have waited",
            expected="committed offsets",
            why="the group was away for longer than offsets.retention.minutes, or its offsets were deleted",
            remedy="A lane refuses to start there. Decide where to go on, with all workers stopped: "
            f"kafka-consumer-groups.sh --reset-offsets --topic {topology.main} with --to-datetime or --to-earliest",
        )
    if expired:
        yield note(
            f"{subject}, expired",
            f"none for partition {', '.join(map(str, expired))}, whose lanes have worked",
            why="the group was away for longer than offsets.retention.minutes, or its offsets were deleted; a worker "
            "goes on where its changelog says that it was",
            remedy="Start a worker before the main topic's retention takes what was not read, and let "
            "offsets.retention.minutes be at least downtime",
        )
        yield from _unread(topology, {number: bare[number] for number in expired}, ranges)
    if new and not lost:
        yield note(
            subject,
            f"none yet for {len(new)} of {len(numbers)} partitions",
            why="a worker sets them",
        )


def _unread(topology: HandlerTopology, traces: Mapping[int, Trace], ranges: Ranges) -> Iterator[Finding]:
    """Judge positions that are written down: is what follows them still there?"""
    for number, trace in traces.items():
        for topic, offset in sorted(trace.written.items()):
            kept = ranges.get(topic, {}).get(number)
            if kept is None or kept.begin <= offset <= kept.end:
                continue
            gone = offset < kept.begin
            yield Finding(
                name=f"offset of {topic}[{number}]",
                severity=Severity.PROBLEM,
                seen=f"none committed, and {offset} written down in {topology.pending_changelog}",
                expected=f"{kept.begin} to {kept.end}",
                why=f"{kept.begin - offset} records were deleted before the group read them"
                if gone
                else "the topic was made anew, or lost its end",
                remedy="A lane refuses to start there. Decide where to go on, with all workers stopped: "
                f"kafka-consumer-groups.sh --reset-offsets --topic {topic}:{number} --to-earliest --execute",
            )


def _deleted(
    topology: HandlerTopology, topics: Sequence[str], committed: Committed, ranges: Ranges, traced: Traced
) -> Iterator[Finding]:
    """Judge partitions that lack the offset of one topic and have others: somebody deleted it, or the topic is new."""
    for number in sorted({number for topic in topics for number in committed.get(topic, {})}):
        missing = [
            topic
            for topic in topics
            if number not in committed.get(topic, {}) and number in ranges[topic] and ranges[topic][number].end
        ]
        trace = traced(topology, number) if missing else Trace()
        for topic in missing:
            name, kept = f"offset of {topic}[{number}]", ranges[topic][number]
            if topic in trace.written:
                yield note(
                    name,
                    "none, beside others of this partition",
                    why=f"a worker goes on at {trace.written[topic]}, as its changelog says",
                    remedy="Start a worker; it commits it",
                )
            else:
                yield Finding(
                    name=name,
                    severity=Severity.WARNING,
                    seen="none, beside others of this partition",
                    expected=f"{kept.begin} to {kept.end}",
                    why=f"a worker begins at {kept.begin}: what was done from there on is done again",
                    remedy="Set it, with all workers stopped: kafka-consumer-groups.sh --reset-offsets "
                    f"--topic {topic}:{number} --to-offset OFFSET --execute",
                )
        if trace.written:
            yield from _unread(topology, {number: _only(trace, missing)}, ranges)


def _only(trace: Trace, topics: Sequence[str]) -> Trace:
    return Trace(rows=trace.rows, written={topic: at for topic, at in trace.written.items() if topic in topics})

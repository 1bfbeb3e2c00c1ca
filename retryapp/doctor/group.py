"""The consumer group: its members, whether its offsets still point into its topics, and what its login may do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from retryapp.core.text import counted
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Finding, note, numbers, ok, problem
from retryapp.kafka import TopicState
from retryapp.kafka.acls import Acl, Pattern, Resource

PROTOCOL: Final = "faust"
"""Name under which workers join the group; a test compares it with the runtime's."""

Committed = Mapping[str, Mapping[int, int]]
"""Topic → partition → committed offset."""
Ranges = Mapping[str, Mapping[int, range]]
"""Topic → partition → the offsets that it keeps, of the topics that exist."""


def judge_group(name: str, group: Any, *, partitions: int) -> Finding:
    """Report the state of the group, as `KafkaAdmin.describe_group` returns it; one that never existed is ``dead``.

    Kafka does not report the generation of a classic group like Faust's.
    """
    members, state, protocol = len(group.members), group.state.name.lower(), group.partition_assignor or ""
    hosts = ", ".join(sorted({member.host.lstrip("/") for member in group.members}))
    subject = f"group {name}"
    seen = f"{state}, {counted(members, 'member')}{f' on {hosts}' if hosts else ''}"
    kind = str(getattr(getattr(group, "type", None), "name", "unknown")).lower()  # ``consumer``: that of KIP-848
    if kind == "consumer" or protocol not in {"", PROTOCOL}:
        return problem(
            subject,
            f"{seen}, protocol {protocol or kind}",
            expected=f"workers, whose protocol is {PROTOCOL}",
            why="another program uses this group id; no worker can join",
            remedy="Stop that program, or give it or the app (faust.App id) another group",
        )
    if state in {"empty", "dead"}:
        return note(
            subject,
            "no worker runs" if state == "empty" else "no worker has run yet, or its offsets have expired",
        )
    if state != "stable":
        why = "members join or leave; if it stays so, one of them does not answer"
        return note(subject, seen, expected="stable", why=why, remedy="Look again in a minute")
    if members > partitions > 0:
        expected = f"{counted(partitions, 'member')} or fewer (partitions)"
        return note(subject, seen, expected=expected, why="the others are only on standby")
    return ok(subject, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What the changelog of a partition says of its past."""

    lost: bool = False
    """Records have waited there, and it does not say where the lane was."""
    written: int | None = None
    """The main topic's next offset that the lane noted last."""


Traces = Mapping[tuple[str, int], Trace]
"""Main topic and partition → what its changelog says; of partitions without a committed offset."""


def judge_offsets(
    topologies: Sequence[HandlerTopology], committed: Committed, ranges: Ranges, traces: Traces
) -> Iterator[Finding]:
    """Report committed offsets that are missing or point outside their main topic."""
    for topology in topologies:
        main, kept = topology.main, ranges.get(topology.main, {})
        offsets = committed.get(main, {})
        outside = list[Finding]()
        new, expired, forgotten = list[int](), list[int](), list[int]()
        for number, here in sorted(kept.items()):
            offset, seen = offsets.get(number), ""
            if offset is None:
                trace = traces[main, number]
                offset, seen = trace.written, "none; the changelog says "
                if offset is None:
                    (forgotten if trace.lost else new).append(number)
                    continue
            if not here.start <= offset <= here.stop:
                outside.append(_outside(topology.group, main, number, f"{seen}{offset}", offset, here))
            elif seen:
                expired.append(number)
        findings = [*outside, *_summaries(topology, len(kept), new, expired, forgotten)]
        yield from findings
        if kept and not findings:
            yield ok(f"offsets of {main}", f"{len(offsets)} committed, all within the topic")


def _summaries(
    topology: HandlerTopology, partitions: int, new: list[int], expired: list[int], forgotten: list[int]
) -> Iterator[Finding]:
    name = f"offsets of {topology.main}"
    why = "they expired (offsets.retention.minutes) or were deleted"
    if forgotten:
        yield problem(
            name,
            f"none for partition {numbers(forgotten)}, where records have waited",
            expected="committed offsets",
            why=f"{why}; these lanes refuse to start",
            remedy=_reset(topology.group, f"{topology.main}:{forgotten[0]}", "--to-datetime or --to-earliest"),
        )
    if expired:
        yield note(
            f"{name}, expired",
            f"missing for partition {numbers(expired)}, whose lanes have worked",
            why=f"{why}; a worker continues where its changelog says",
            remedy="Start a worker before the main topic's retention deletes what is unread, and set "
            "offsets.retention.minutes to at least downtime",
        )
    if new and not forgotten:
        yield note(name, f"none yet for {len(new)} of {counted(partitions, 'partition')}", why="a worker sets them")


def _reset(group: str, place: str, target: str) -> str:
    command = f"kafka-consumer-groups.sh --group {group} --reset-offsets --topic {place} {target} --execute"
    return f"Choose where to continue, with all workers stopped: {command}"


def _outside(group: str, topic: str, number: int, seen: str, offset: int, kept: range) -> Finding:
    lost = f"{counted(kept.start - offset, 'record')} deleted before the group read them"
    return problem(
        f"offset of {topic}[{number}]",
        seen,
        expected=f"{kept.start} to {kept.stop}",
        why=f"{lost if offset < kept.start else 'the topic was recreated, or lost its end'}; its lane refuses to start",
        remedy=_reset(group, f"{topic}:{number}", "--to-earliest"),
    )


REMEDY = "Grant them: 'retryapp plan -A MODULE --acls' prints the kafka-acls.sh lines"


def judge_rights(
    acls: Sequence[Acl],
    *,
    topics: Mapping[str, TopicState],
    group: frozenset[str] | None,
    cluster: frozenset[str] | None,
) -> Iterator[Finding]:
    """Compare the required rights with the operations that the brokers report (None: unknown).

    Kafka reports them for existing topics, groups and the cluster, not for transactional ids.
    """
    allowed = {name: facts.operations for name, facts in topics.items() if facts.operations is not None}
    if not allowed and group is None and cluster is None:
        yield note("rights", "not reported by the brokers", why="nothing exists yet, or they report no rights")
        return

    def required(resource: Resource, name: str | None = None) -> set[str]:
        """Return operations; on our own topics, which share a prefix, unless a topic is named."""
        return {
            acl.code
            for acl in acls
            if acl.resource is resource
            and (acl.needed or resource is Resource.CLUSTER)
            and (resource is not Resource.TOPIC or (acl.name == name if name else acl.pattern is Pattern.PREFIXED))
        }

    missing = []
    for topic, operations in sorted(allowed.items()):
        wanted = required(Resource.TOPIC, topic) or required(Resource.TOPIC)
        missing += [f"{code} on topic {topic}" for code in sorted(wanted - {"CREATE"} - operations)]  # it exists
    if group is not None:
        missing += [f"{code} on the group" for code in sorted(required(Resource.GROUP) - group)]
    if missing:
        yield problem(
            "rights",
            f"not allowed: {', '.join(missing)}",
            expected="what workers do",
            why="a worker exits at its start, or its partitions stop",
            remedy=REMEDY,
        )
    else:
        places = counted(len(allowed), "topic") + (" and the group" if group is not None else "")
        yield ok("rights", f"{places}: all allowed", "what workers do")
    spare = sorted(required(Resource.CLUSTER) - cluster) if cluster is not None else []
    if spare:
        yield note(
            "rights on the cluster",
            f"not allowed: {', '.join(spare)}",
            why="workers do not need them; without them too few replicas are not refused, and the doctor sees less",
        )

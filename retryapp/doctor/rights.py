"""What this login may do against what workers need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from retryapp.doctor.acls import Acl, Pattern, Resource
from retryapp.doctor.cluster import ReplicaFacts
from retryapp.doctor.findings import Finding, Severity, counted, note, ok

REMEDY = "Grant them: 'retryapp plan --acls' prints the kafka-acls.sh lines"


def judge_rights(
    acls: Sequence[Acl],
    *,
    topics: Mapping[str, ReplicaFacts],
    group: frozenset[str] | None,
    cluster: frozenset[str] | None,
) -> Iterator[Finding]:
    """Compare the rights that are needed with those that the brokers told.

    Kafka tells them for what exists: topics, the group, the cluster. It has no such question for transactional ids.

    Args:
        acls: what is needed.
        topics: the topics that exist and that we may see.
        group: operations that are allowed on the group; None: not told.
        cluster: the same of the cluster.
    """
    told = {name: facts.operations for name, facts in topics.items() if facts.operations is not None}
    if not told and group is None and cluster is None:
        yield note("rights", "not told by the brokers", why="nothing exists yet, or they tell no rights")
        return
    ours = {acl.code for acl in acls if acl.resource is Resource.TOPIC and acl.pattern is Pattern.PREFIXED}
    ours.discard("CREATE")  # of an existing topic nobody needs it
    mains: dict[str, set[str]] = {}
    for acl in acls:
        if acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL:
            mains.setdefault(acl.name, set()).add(acl.code)
    missing: list[str] = []
    for name, allowed in sorted(told.items()):
        wanted = mains[name] - {"CREATE"} if name in mains else ours
        missing += [f"{operation} on topic {name}" for operation in sorted(wanted - allowed)]
    missing += _lacking(acls, Resource.GROUP, group)
    if missing:
        yield Finding(
            name="rights",
            severity=Severity.PROBLEM,
            seen=f"not allowed: {', '.join(missing)}",
            expected="what workers do",
            why="a worker ends at its start, or its partitions stand still",
            remedy=REMEDY,
        )
    else:
        yield ok(
            "rights", f"{counted(len(told), 'topic')} and the group: all that workers do is allowed", "what workers do"
        )
    spare = _lacking(acls, Resource.CLUSTER, cluster)
    if spare:
        yield note(
            "rights on the cluster",
            f"not allowed: {', '.join(spare)}",
            why="workers do without; too few copies are then not refused, and the doctor sees less",
        )


def _lacking(acls: Sequence[Acl], resource: Resource, allowed: frozenset[str] | None) -> list[str]:
    if allowed is None:
        return []
    wanted = {acl.code: acl for acl in acls if acl.resource is resource}
    if resource is Resource.CLUSTER:
        return [code for code in sorted(wanted) if code not in allowed]
    return [f"{code} on {resource.value.lower()} {acl.name}" for code, acl in wanted.items() if code not in allowed]

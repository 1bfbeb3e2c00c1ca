"""What this login may do, compared with what workers need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from retryapp.doctor.findings import Finding, counted, note, ok, problem
from retryapp.kafka import TopicState
from retryapp.kafka.acls import Acl, Pattern, Resource

REMEDY = "Grant them: 'retryapp plan --acls' prints the kafka-acls.sh lines"


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
        yield ok("rights", f"{counted(len(allowed), 'topic')} and the group: all allowed", "what workers do")
    spare = sorted(required(Resource.CLUSTER) - cluster) if cluster is not None else []
    if spare:
        yield note(
            "rights on the cluster",
            f"not allowed: {', '.join(spare)}",
            why="workers do not need them; without them too few replicas are not refused, and the doctor sees less",
        )

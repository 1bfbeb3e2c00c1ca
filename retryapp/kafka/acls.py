"""Which rights an application's workers need, from its handlers alone.

All our names begin with ``{group}.``: entries with that prefix serve all handlers; each main topic has its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from retryapp.core.topology import HandlerTopology
from retryapp.kafka.connection import KafkaConnection


class Resource(StrEnum):
    """Kinds of resources, in Kafka's words."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


class Pattern(StrEnum):
    """How a name matches."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


_OPTIONS: Final = {
    Resource.TOPIC: "--topic",
    Resource.GROUP: "--group",
    Resource.TRANSACTIONAL_ID: "--transactional-id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One right: an operation on a resource."""

    resource: Resource
    name: str
    pattern: Pattern
    operation: str
    """Kafka's word, as ``DescribeConfigs``."""
    why: str
    needed: bool = True
    """False: workers run without it."""

    @property
    def code(self) -> str:
        """The operation as clients name it.

        >>> Acl(resource=Resource.CLUSTER, name="", pattern=Pattern.LITERAL, operation="DescribeConfigs", why="").code
        'DESCRIBE_CONFIGS'
        """
        return "".join(f"_{letter}" if letter.isupper() else letter for letter in self.operation).lstrip("_").upper()


def needed_acls(topologies: Sequence[HandlerTopology], *, create_main: bool = False) -> tuple[Acl, ...]:
    """Return the rights that the workers of one application need, which has a handler, by resource.

    `create_main`: they create missing main topics, and those that handlers declare to publish to.
    """
    group = topologies[0].group
    literal, prefixed = Pattern.LITERAL, Pattern.PREFIXED
    create = {"Create": "the application creates it when it is missing"} if create_main else {}
    acls = list(_acls(Resource.TOPIC, f"{group}.", prefixed, _OURS))
    through = {topology.main for topology in topologies if topology.through_main}
    others = {topology.main for topology in topologies if topology.letters_from is not None}
    for main in sorted({topology.main for topology in topologies if topology.own_letters_of is None}):
        first = {} if main in others else create
        acls += _acls(Resource.TOPIC, main, literal, {**first, **_MAIN, **(_THROUGH_MAIN if main in through else {})})
    for topic in sorted({topic for topology in topologies for topic in topology.publishes}):
        acls += _acls(Resource.TOPIC, topic, literal, {**create, **_PUBLISHED}, optional="DescribeConfigs")
    acls += _acls(Resource.GROUP, group, literal, {"Read": "membership and offsets"})
    acls += _acls(Resource.TRANSACTIONAL_ID, f"{group}.", prefixed, _TRANSACTIONS)
    acls += _acls(Resource.CLUSTER, "kafka-cluster", literal, _CLUSTER, optional=" ".join(_CLUSTER))
    return tuple(acls)


_OURS: Final = {
    "Create": "workers create missing topics",
    "Describe": "partition counts, topic ids, leaders",
    "DescribeConfigs": "every start checks the settings that could lose a record",
    "Read": "changelogs when a lane opens, dead letters for the pages",
    "Write": "retries, dead letters, events, changelogs",
}
_MAIN: Final = {
    "Describe": "its partition count decides that of our topics",
    "DescribeConfigs": "its max.message.bytes decides that of our topics",
    "Read": "it is consumed; nothing is ever written to it",
}
_THROUGH_MAIN: Final = {
    "Read": "it is consumed",
    "Write": "what is due again goes through it (redelivery='main')",
}
_PUBLISHED: Final = {
    "Describe": "it is described before it is published to",
    "DescribeConfigs": "a record that is too large for it is refused before its transaction fails",
    "Write": "handlers publish to it",
}
_TRANSACTIONS: Final = {
    "Describe": "finding the coordinator of a transaction",
    "Write": "hand-offs: one transactional id for each handler and partition",
}
_CLUSTER: Final = {
    "IdempotentWrite": "brokers before 3.0 require it; later the right to write a topic includes it",
    "Describe": "the doctor shows what this login may do",
    "DescribeConfigs": "default.replication.factor, so that too few replicas are refused; and the doctor",
}


def _acls(
    resource: Resource, name: str, pattern: Pattern, operations: Mapping[str, str], *, optional: str = ""
) -> Iterator[Acl]:
    for operation, why in operations.items():
        needed = operation not in optional.split()
        yield Acl(resource=resource, name=name, pattern=pattern, operation=operation, why=why, needed=needed)


def acl_commands(acls: Sequence[Acl], connection: KafkaConnection, *, principal: str) -> tuple[str, ...]:
    """Return the ``kafka-acls.sh`` lines that grant rights (sorted by resource) to a principal, as ``User:billing``."""
    lines = []
    for (resource, name, pattern), rights in groupby(acls, key=lambda acl: (acl.resource, acl.name, acl.pattern)):
        words = ["kafka-acls.sh", "--add", "--allow-principal", principal]
        for acl in rights:
            words += ["--operation", acl.operation]
        words += ["--cluster"] if resource is Resource.CLUSTER else [_OPTIONS[resource], name]
        if pattern is Pattern.PREFIXED:
            words += ["--resource-pattern-type", pattern.value]
        lines.append(connection.complete(shlex.join(words)))
    return tuple(lines)

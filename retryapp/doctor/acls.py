"""Which rights an application's workers need, from its handlers alone.

All that is ours stands within the prefix ``{group}.``, so four entries with that prefix serve every handler that the
application has and will have; each main topic has entries of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final

from retryapp.core.topology import HandlerTopology


class Resource(StrEnum):
    """Kinds of things that rights are about, in Kafka's words."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


class Pattern(StrEnum):
    """How a name is meant."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


CLUSTER_NAME: Final = "kafka-cluster"

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
    """False: workers do without, and something else is better with it."""

    @property
    def code(self) -> str:
        """The operation as clients name it.

        >>> Acl(resource=Resource.CLUSTER, name="", pattern=Pattern.LITERAL, operation="DescribeConfigs", why="").code
        'DESCRIBE_CONFIGS'
        """
        return "".join(f"_{letter}" if letter.isupper() else letter for letter in self.operation).lstrip("_").upper()


def needed_acls(
    topologies: Sequence[HandlerTopology],
    *,
    create_main: bool = False,
    transactions: bool = True,
    publishes: Sequence[str] = (),
) -> tuple[Acl, ...]:
    """Return the rights that the workers of one application need.

    Args:
        topologies: its handlers, at least one.
        create_main: they make missing main topics.
        transactions: hand-offs are transactions (``delivery="exactly_once"``).
        publishes: topics that handlers publish to (``record.publish``); no application says them.

    Returns:
        Rights by resource: ours, main topics, topics published to, group, transactional ids, cluster.
    """
    group = topologies[0].group
    mains = sorted({topology.main for topology in topologies})
    return (
        *_ours(group),
        *(acl for main in mains for acl in _main(main, create=create_main)),
        *(acl for topic in sorted(set(publishes)) for acl in _published(topic)),
        _group_acl(group),
        *(_transactions(group) if transactions else ()),
        *_cluster(),
    )


def _ours(group: str) -> Iterator[Acl]:
    operations = {
        "Create": "workers make the topics that are missing",
        "Describe": "partition counts, topic ids, leaders",
        "DescribeConfigs": "every start checks the settings that could lose a record",
        "Read": "retry and redelivery topics, changelogs, dead letters for the pages",
        "Write": "retries, redeliveries, dead letters, events, changelogs",
    }
    for operation, why in operations.items():
        yield Acl(resource=Resource.TOPIC, name=f"{group}.", pattern=Pattern.PREFIXED, operation=operation, why=why)


def _main(main: str, *, create: bool) -> Iterator[Acl]:
    operations = {
        **({"Create": "the application makes it when it is missing"} if create else {}),
        "Describe": "its partition count decides that of our topics",
        "DescribeConfigs": "its max.message.bytes decides that of our topics",
        "Read": "it is consumed; nothing is ever written to it",
    }
    for operation, why in operations.items():
        yield Acl(resource=Resource.TOPIC, name=main, pattern=Pattern.LITERAL, operation=operation, why=why)


def _published(topic: str) -> Iterator[Acl]:
    operations = {
        "Describe": "it is looked at before it is published to",
        "DescribeConfigs": "a record that it would refuse is known before its transaction fails",
        "Write": "handlers publish to it",
    }
    for operation, why in operations.items():
        needed = operation != "DescribeConfigs"
        yield Acl(
            resource=Resource.TOPIC, name=topic, pattern=Pattern.LITERAL, operation=operation, why=why, needed=needed
        )


def _group_acl(group: str) -> Acl:
    return Acl(
        resource=Resource.GROUP,
        name=group,
        pattern=Pattern.LITERAL,
        operation="Read",
        why="membership and offsets",
    )


def _transactions(group: str) -> Iterator[Acl]:
    operations = {
        "Describe": "finding the coordinator of a transaction",
        "Write": "hand-offs: one transactional id for each handler and partition",
    }
    for operation, why in operations.items():
        yield Acl(
            resource=Resource.TRANSACTIONAL_ID,
            name=f"{group}.",
            pattern=Pattern.PREFIXED,
            operation=operation,
            why=why,
        )


def _cluster() -> Iterator[Acl]:
    operations = {
        "IdempotentWrite": "brokers before 3.0 ask for it; later the right to write a topic includes it",
        "Describe": "the doctor shows what this login may do",
        "DescribeConfigs": "default.replication.factor, so that too few copies are refused; and the doctor",
    }
    for operation, why in operations.items():
        yield Acl(
            resource=Resource.CLUSTER,
            name=CLUSTER_NAME,
            pattern=Pattern.LITERAL,
            operation=operation,
            why=why,
            needed=False,
        )


def acl_commands(acls: Sequence[Acl], *, bootstrap: str, principal: str) -> tuple[str, ...]:
    """Return the ``kafka-acls.sh`` lines that grant rights, one for each resource.

    Args:
        acls: rights, those of a resource side by side.
        bootstrap: address of the cluster.
        principal: who gets them, as ``User:billing``.
    """
    lines = []
    for (resource, name, pattern), rights in groupby(acls, key=lambda acl: (acl.resource, acl.name, acl.pattern)):
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        for acl in rights:
            words += ["--operation", acl.operation]
        words += ["--cluster"] if resource is Resource.CLUSTER else [_OPTIONS[resource], name]
        if pattern is Pattern.PREFIXED:
            words += ["--resource-pattern-type", pattern.value]
        lines.append(shlex.join(words))
    return tuple(lines)

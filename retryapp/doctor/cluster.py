"""Facts about the cluster: brokers and their settings, the group. Changes nothing.

What a login may not see is None or missing, not an error: most clusters show an application little about themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from retryapp.kafka import KafkaAdmin
from retryapp.kafka.admin import operation_names

MOST_BROKERS: Final = 12
"""Brokers whose settings are read; of a larger cluster those with the lowest ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The brokers."""

    brokers: tuple[int, ...]
    """Ids of those that are up."""
    settings: Mapping[str, Mapping[str, str]]
    """Broker id → settings; empty when we may not read them."""
    operations: frozenset[str] | None
    """What this login may do to the cluster, in Kafka's words (``DESCRIBE``); None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """The consumer group."""

    state: str
    """Kafka's word: ``stable``, ``empty``, ``dead``, ``preparing_rebalancing``, ``completing_rebalancing``."""
    kind: str
    """``classic`` or ``consumer`` (KIP-848); ``unknown`` on older brokers."""
    protocol: str
    """Name of the assignor that the members agreed on; empty without members."""
    hosts: tuple[str, ...]
    """Address of each member."""
    operations: frozenset[str] | None


class ClusterReader(KafkaAdmin):
    """Asks one cluster; every request ends within ``timeout_s``, or raises a named error."""

    def brokers(self) -> ClusterFacts:
        """Return the brokers and their settings.

        Raises:
            BrokerUnreachableError: no broker answered.
        """
        future = self._client.describe_cluster(include_authorized_operations=True, request_timeout=self.timeout_s)
        described: Any = self._result(future, doing="describe the cluster")
        ids = tuple(sorted(node.id for node in described.nodes))
        return ClusterFacts(
            brokers=ids,
            settings=self.broker_settings(ids[:MOST_BROKERS]),
            operations=operation_names(described.authorized_operations),
        )

    def group(self, name: str) -> GroupFacts:
        """Return a consumer group; one that never existed is ``dead``."""
        described = self.describe_group(name)
        return GroupFacts(
            state=described.state.name.lower(),
            kind=str(getattr(getattr(described, "type", None), "name", "unknown")).lower(),
            protocol=described.partition_assignor or "",
            hosts=tuple(member.host.lstrip("/") for member in described.members),
            operations=operation_names(described.authorized_operations),
        )

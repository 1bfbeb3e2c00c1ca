"""Facts about the cluster: brokers and their settings. Changes nothing.

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


class ClusterReader(KafkaAdmin):
    """Asks one cluster, also for its brokers."""

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

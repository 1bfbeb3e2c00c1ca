"""Facts about the cluster: brokers and their settings, replicas, rights, the group. Changes nothing.

What a login may not see is None or missing, not an error: most clusters show an application little about themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names, which it does not list
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.kafka import KafkaAdmin, KafkaRequestError
from retryapp.kafka.positions import describe_group

NEWEST: Final[OffsetSpec] = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
MOST_BROKERS: Final = 12
"""Brokers whose settings are read; of a larger cluster those with the lowest ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The brokers."""

    brokers: tuple[int, ...]
    """Ids of those that are up."""
    settings: Mapping[int, Mapping[str, str]]
    """Broker id → settings; empty when we may not read them."""
    operations: frozenset[str] | None
    """What this login may do to the cluster, in Kafka's words (``DESCRIBE``); None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One topic's replicas, and what this login may do to it."""

    partitions: int
    replication: int
    """Replicas of the partition that has the fewest."""
    leaderless: tuple[int, ...]
    """Partitions without a leader."""
    lagging: Mapping[int, int]
    """Partition → replicas in sync, where these are fewer than its replicas."""
    operations: frozenset[str] | None


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
            settings=self._broker_settings(ids[:MOST_BROKERS]),
            operations=_operations(described.authorized_operations),
        )

    def _broker_settings(self, ids: Iterable[int]) -> dict[int, dict[str, str]]:
        resources = {ConfigResource(ResourceType.BROKER, str(number)): number for number in ids}
        settings: dict[int, dict[str, str]] = {}
        if not resources:
            return settings
        answers = self._client.describe_configs(list(resources), request_timeout=self.timeout_s)
        for resource, future in answers.items():
            try:
                entries: Any = self._result(future, doing=f"read the settings of broker {resources[resource]}")
            except KafkaRequestError:
                continue  # a right that many clusters give to operators only
            settings[resources[resource]] = {
                name: entry.value for name, entry in entries.items() if entry.value is not None
            }
        return settings

    def replicas(self, names: Iterable[str]) -> dict[str, ReplicaFacts]:
        """Return those of the named topics that exist and that we may see."""
        topics = sorted(set(names))
        replicas: dict[str, ReplicaFacts] = {}
        if not topics:
            return replicas
        answers = self._client.describe_topics(
            TopicCollection(topics), include_authorized_operations=True, request_timeout=self.timeout_s
        )
        for name, future in answers.items():
            try:
                topic: Any = self._result(future, doing=f"describe topic {name}")
            except BrokerUnreachableError:
                raise
            except RetryAppError:
                continue  # missing or not allowed: the plan and the rights report it
            replicas[name] = ReplicaFacts(
                partitions=len(topic.partitions),
                replication=min((len(p.replicas) for p in topic.partitions), default=0),
                leaderless=tuple(p.id for p in topic.partitions if p.leader is None or p.leader.id < 0),
                lagging={p.id: len(p.isr) for p in topic.partitions if len(p.isr) < len(p.replicas)},
                operations=_operations(topic.authorized_operations),
            )
        return replicas

    def group(self, name: str) -> GroupFacts:
        """Return a consumer group; one that never existed is ``dead``."""
        doing = f"describe group {name}"
        with self._naming(doing):
            described = describe_group(self._client, name, timeout_s=self.timeout_s)
        return GroupFacts(
            state=described.state.name.lower(),
            kind=str(getattr(getattr(described, "type", None), "name", "unknown")).lower(),
            protocol=described.partition_assignor or "",
            hosts=tuple(member.host.lstrip("/") for member in described.members),
            operations=_operations(described.authorized_operations),
        )

    def newest_append_ms(self, topics: Mapping[str, int]) -> int | None:
        """Return the latest record timestamp of some topics, epoch milliseconds; None when they are empty."""
        places = {ClientTopicPartition(topic, p): NEWEST for topic, count in topics.items() for p in range(count)}
        if not places:
            return None
        answers = self._client.list_offsets(
            places, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self.timeout_s
        )
        doing = "read the time of the newest record"
        stamps = [int(getattr(self._result(future, doing=doing), "timestamp", -1)) for future in answers.values()]
        return max((stamp for stamp in stamps if stamp >= 0), default=None)


def _operations(listed: Iterable[Any] | None) -> frozenset[str] | None:
    """Return operations by name. Brokers without an authorizer list all; some brokers list none."""
    return None if listed is None else frozenset(operation.name for operation in listed)

"""Facts about the cluster: brokers and their settings, replicas, rights, the group, its offsets. Asks; changes nothing.

What a login may not see is None or missing, never an error: most clusters tell an application little about themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names, which it does not list
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.kafka import KafkaConnection, KafkaRequestError
from retryapp.kafka.connection import named_error

T = TypeVar("T")

NEWEST: Final[OffsetSpec] = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
PASSING: Final = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"})
"""Names of errors that mean: ask the coordinator again."""
PAUSE_S: Final = 0.1
MOST_BROKERS: Final = 12
"""Brokers whose settings are read; a larger cluster is sampled, the lowest ids first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The brokers."""

    brokers: tuple[int, ...]
    """Ids of those that are up."""
    settings: Mapping[int, Mapping[str, str]] | None
    """Broker id → settings; None: we may not read them."""
    operations: frozenset[str] | None
    """What this login may do to the cluster, in Kafka's words (``DESCRIBE``); None: not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One topic's copies, and what this login may do to it."""

    partitions: int
    replication: int
    """Copies of the partition that has the fewest."""
    leaderless: tuple[int, ...]
    """Partitions that nobody leads."""
    lagging: Mapping[int, int]
    """Partition → copies in sync, where these are fewer than its copies."""
    operations: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """The consumer group."""

    state: str
    """Kafka's word: ``stable``, ``empty``, ``dead``, ``preparing_rebalancing``, ``completing_rebalancing``."""
    kind: str
    """``classic`` or ``consumer`` (KIP-848); ``unknown`` where it is not told."""
    protocol: str
    """Name of the assignor that the members agreed on; empty without members."""
    hosts: tuple[str, ...]
    """Address of each member."""
    operations: frozenset[str] | None


@dataclass(slots=True)
class ClusterReader:
    """Asks one cluster; every question ends within ``timeout_s``, or raises a named error."""

    connection: KafkaConnection
    timeout_s: float = 10.0
    _client: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        """Make the client; it must outlive its futures, so it lives as long as this object."""
        self._client = self.connection.client(
            AdminClient, socket_timeout_ms=max(10, int(self.timeout_s * 1000)), allow_auto_create_topics=False
        )

    def cluster(self) -> ClusterFacts:
        """Return the brokers and their settings.

        Raises:
            BrokerUnreachableError: no broker answered.
        """
        future = self._client.describe_cluster(include_authorized_operations=True, request_timeout=self.timeout_s)
        described: Any = self._answer(future, doing="describe the cluster")
        ids = tuple(sorted(node.id for node in described.nodes))
        return ClusterFacts(
            brokers=ids,
            settings=self._broker_settings(ids[:MOST_BROKERS]),
            operations=_operations(described.authorized_operations),
        )

    def _broker_settings(self, ids: Iterable[int]) -> dict[int, dict[str, str]] | None:
        resources = {ConfigResource(ResourceType.BROKER, str(number)): number for number in ids}
        if not resources:
            return None
        settings: dict[int, dict[str, str]] = {}
        answers = self._client.describe_configs(list(resources), request_timeout=self.timeout_s)
        for resource, future in answers.items():
            try:
                entries: Any = self._answer(future, doing=f"read the settings of broker {resources[resource]}")
            except KafkaRequestError:
                continue  # a right that many clusters give to operators only
            settings[resources[resource]] = {
                name: entry.value for name, entry in entries.items() if entry.value is not None
            }
        return settings or None

    def replicas(self, names: Iterable[str]) -> dict[str, ReplicaFacts]:
        """Return those of the named topics that exist and that we may see."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        answers = self._client.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=self.timeout_s
        )
        found: dict[str, ReplicaFacts] = {}
        for name, future in answers.items():
            try:
                topic: Any = self._answer(future, doing=f"describe topic {name}")
            except BrokerUnreachableError:
                raise
            except RetryAppError:
                continue  # not there, or not for us: the plan and the rights say so
            found[name] = ReplicaFacts(
                partitions=len(topic.partitions),
                replication=min((len(p.replicas) for p in topic.partitions), default=0),
                leaderless=tuple(p.id for p in topic.partitions if p.leader is None or p.leader.id < 0),
                lagging={p.id: len(p.isr) for p in topic.partitions if len(p.isr) < len(p.replicas)},
                operations=_operations(topic.authorized_operations),
            )
        return found

    def group(self, name: str) -> GroupFacts:
        """Return a consumer group; one that was never there is ``dead``."""

        def ask() -> Future[Any]:
            answers: Mapping[str, Future[Any]] = self._client.describe_consumer_groups(
                [name], include_authorized_operations=True, request_timeout=self.timeout_s
            )
            return answers[name]

        described = self._patiently(ask, doing=f"describe group {name}")
        return GroupFacts(
            state=described.state.name.lower(),
            kind=str(getattr(getattr(described, "type", None), "name", "unknown")).lower(),
            protocol=described.partition_assignor or "",
            hosts=tuple(member.host.lstrip("/") for member in described.members),
            operations=_operations(described.authorized_operations),
        )

    def committed(self, group: str, partitions: Mapping[str, int]) -> dict[str, dict[int, int]]:
        """Return the committed offsets of a group.

        Args:
            group: its name.
            partitions: topic → how many partitions to ask for.

        Returns:
            Topic → partition → offset, without the partitions that have none.
        """
        places = [ClientTopicPartition(topic, p) for topic, count in partitions.items() for p in range(count)]
        if not places:
            return {}

        def ask() -> Future[Any]:
            request = ConsumerGroupTopicPartitions(group, places)
            answers = self._client.list_consumer_group_offsets([request], request_timeout=self.timeout_s)
            return answers[group]

        self.group(group)  # the coordinator is there then: see `describe_group`
        answer = self._patiently(ask, doing=f"read the offsets of group {group}")
        found: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        for place in answer.topic_partitions:
            if place.error is None and place.offset >= 0:
                found[place.topic][place.partition] = place.offset
        return found

    def newest_append_ms(self, topics: Mapping[str, int]) -> int | None:
        """Return the latest record timestamp of some topics, epoch milliseconds; None when they are empty.

        Args:
            topics: topic → how many partitions.
        """
        return max(self.newest_appends(topics).values(), default=None)

    def newest_appends(self, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """Return the latest record timestamp by topic and partition, epoch milliseconds, without those that are empty.

        Args:
            topics: topic → how many partitions.
        """
        places = {ClientTopicPartition(topic, p): NEWEST for topic, count in topics.items() for p in range(count)}
        if not places:
            return {}
        answers = self._client.list_offsets(
            places, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=self.timeout_s
        )
        newest = {
            (place.topic, place.partition): int(
                getattr(self._answer(future, doing="read the time of the newest record"), "timestamp", -1)
            )
            for place, future in answers.items()
        }
        return {place: stamp for place, stamp in newest.items() if stamp >= 0}

    def _patiently(self, ask: Callable[[], Future[T]], *, doing: str) -> T:
        """Ask until the group's coordinator is there: a broker that has just started still loads it."""
        budget_s = self.timeout_s
        while True:
            future = ask()
            try:
                return future.result(self.timeout_s * 2)
            except KafkaException as error:
                if error.args[0].name() not in PASSING or budget_s <= 0:
                    return self._answer(future, doing=doing)
            except FutureTimeoutError:
                return self._answer(future, doing=doing)
            threading.Event().wait(PAUSE_S)
            budget_s -= PAUSE_S

    def _answer(self, future: Future[T], *, doing: str) -> T:
        try:
            return future.result(self.timeout_s * 2)
        except KafkaException as error:
            raise named_error(error, self.connection, doing=doing, tried_s=self.timeout_s) from error
        except FutureTimeoutError as error:
            raise BrokerUnreachableError(
                self.connection.bootstrap, f"could not {doing} within {self.timeout_s * 2:g} s"
            ) from error


def _operations(listed: Iterable[Any] | None) -> frozenset[str] | None:
    """Return operations by name. Brokers without an authorizer tell all, and some brokers tell nothing."""
    return None if listed is None else frozenset(operation.name for operation in listed)

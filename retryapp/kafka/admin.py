"""What the cluster has: topics, settings, offsets, groups; creating topics and their partitions.

Looking never creates a topic, and every failure is a named error. All calls block.
"""

from __future__ import annotations

import base64
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names, which it does not list
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from retryapp.core.durations import MAX_DURATION_MS
from retryapp.core.errors import TopicMissingError
from retryapp.core.record import short_topic_id
from retryapp.kafka.connection import KafkaConnection, named_error
from retryapp.kafka.errors import KafkaRequestError, PartitionMissingError

if TYPE_CHECKING:
    from retryapp.core.topology import TopicSpec

T = TypeVar("T")
Place = tuple[str, int]  # topic and partition number

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

DEFAULT_TIMEOUT_S: Final = 15.0
REACH_S: Final = 5.0
"""How long a broker may take to answer at all, where somebody waits."""
BROKER_DEFAULT: Final = -1  # replication factor that leaves the number to the broker

REQUEST_TIMED_OUT: Final = -185  # the client library's _TIMED_OUT
PASSING: Final = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PART",
        "REPLICA_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
    }
)
"""Names of errors of an existing partition that mean: no leader knows of it yet, ask again."""
COORDINATOR_COMING: Final = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Names of errors that mean: the group's coordinator is being chosen or loads (on a new broker too)."""
PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic as the cluster has it."""

    name: str
    topic_id: str
    """First 8 characters of the URL-safe base64 form; a topic that is made again has another."""
    partitions: int
    replication: int
    """Copies of the partition that has the fewest."""
    config: Mapping[str, str]
    """All effective settings, also those that the broker's defaults give."""
    leaderless: tuple[int, ...] = ()
    """Partitions that have no leader now."""
    lagging: Mapping[int, int] = field(default_factory=dict)
    """Partition → replicas in sync, where these are fewer than its replicas."""
    operations: frozenset[str] | None = None
    """What this login may do to it, in Kafka's words (``DESCRIBE``); None: unknown."""

    @property
    def deletes_after_ms(self) -> int | None:
        """After how long it deletes records; None: never by time, or it is not known."""
        retention_ms = int(self.config.get("retention.ms", "-1"))
        deletes = "delete" in self.config.get("cleanup.policy", "") and 0 <= retention_ms <= MAX_DURATION_MS
        return retention_ms if deletes else None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The brokers. What a login may not see is missing: most clusters show an application little about themselves."""

    brokers: tuple[int, ...]
    """Ids of those that are up."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Broker id → settings, of those that were asked; empty when we may not read them."""
    operations: frozenset[str] | None = None
    """What this login may do to the cluster, in Kafka's words (``DESCRIBE``); None: unknown."""

    @property
    def default_replication(self) -> int | None:
        """Copies of a topic that is created without their number; None: not known."""
        known = next((of_broker.get("default.replication.factor") for of_broker in self.settings.values()), None)
        return None if known is None else int(known)


class KafkaAdmin:
    """Calls to one cluster; each ends within ``timeout_s`` or raises a named error."""

    def __init__(self, connection: KafkaConnection, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        self._hints: list[str] = []
        # The client object must outlive its futures ("Handle is terminating"), so it lives as long as we do.
        self._client = connection.client(
            AdminClient,
            socket_timeout_ms=max(10, int(timeout_s * 1000)),
            error_cb=self._note_error,
            allow_auto_create_topics=False,
        )

    def topic_names(self) -> tuple[str, ...]:
        """Return the names of all topics that we may see, sorted."""
        return tuple(sorted(self._metadata("list topics").topics))

    def cluster_id(self) -> str:
        """Return the id of the cluster; empty where the brokers do not say."""
        return self._metadata("ask for the cluster id").cluster_id or ""

    def cluster(self, *, asked: int = 1) -> ClusterState:
        """Return the brokers; the settings are of `asked` of them, those with the lowest ids.

        Raises:
            BrokerUnreachableError: no broker answered.
        """
        future = self._client.describe_cluster(include_authorized_operations=True, request_timeout=self.timeout_s)
        described: Any = self._result(future, doing="list brokers")
        ids = tuple(sorted(node.id for node in described.nodes))
        # many clusters show their settings to operators only
        settings = self._configs(ResourceType.BROKER, map(str, ids[:asked]), tolerant=True)
        return ClusterState(ids, settings, operation_names(described.authorized_operations))

    def _metadata(self, doing: str) -> Any:
        with self._naming(doing):
            return self._client.list_topics(timeout=self.timeout_s)

    def describe_topics(self, names: Iterable[str], *, tolerant: bool = False) -> dict[str, TopicState]:
        """Return the state of those of the named topics that exist.

        `tolerant` leaves out topics that we may not describe, and settings that we may not read.

        Raises:
            AccessDeniedError: a topic may not be described by us.
        """
        wanted = sorted(set(names))
        if not wanted:
            return {}
        described = self._client.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=self.timeout_s
        )
        found: dict[str, Any] = {}
        for name, future in described.items():
            try:
                found[name] = self._result(future, doing=f"describe topic {name}", topic=name, right="Describe")
            except TopicMissingError:
                continue
            except KafkaRequestError:
                if not tolerant:
                    raise
        configs = self.settings(found, tolerant=tolerant)
        return {
            name: TopicState(
                name=name,
                topic_id=short_topic_id(url_safe_topic_id(topic.topic_id)),
                partitions=len(topic.partitions),
                replication=min((len(p.replicas) for p in topic.partitions), default=0),
                config=configs.get(name, {}),
                leaderless=tuple(p.id for p in topic.partitions if p.leader is None or p.leader.id < 0),
                lagging={p.id: len(p.isr) for p in topic.partitions if len(p.isr) < len(p.replicas)},
                operations=operation_names(topic.authorized_operations),
            )
            for name, topic in found.items()
            if (name in configs or tolerant) and topic.partitions
        }

    def describe(self, topic: str) -> Any:
        """Return the client library's description of a topic, with what this login may do there.

        Raises:
            TopicMissingError: there is none.
            AccessDeniedError: it may not be described by us.
        """
        described = self._client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=self.timeout_s
        )
        return self._result(described[topic], doing=f"describe topic {topic}", topic=topic, right="Describe")

    def offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, range]:
        """Return the offsets that are kept and committed, by partition number; None: all partitions.

        Raises:
            TopicMissingError: no such topic.
            PartitionMissingError: no such partition of it.
        """
        states = self.describe_topics([topic])
        if topic not in states:
            raise TopicMissingError(topic, self.connection.bootstrap)
        known = range(states[topic].partitions)
        numbers = sorted(set(known if partitions is None else partitions))
        for number in set(numbers).difference(known):
            raise PartitionMissingError(topic, number, len(known), self.connection.bootstrap)
        begin, end = (self.list_offsets({(topic, number): which for number in numbers}) for which in (EARLIEST, LATEST))
        return {number: range(begin[topic, number], end[topic, number]) for number in numbers}

    def list_offsets(
        self, wanted: Mapping[Place, OffsetSpec], level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[Place, int]:
        """Return offsets of partitions; while a leader is being elected (a new topic, a broker restarts), ask again.

        Raises:
            BrokerUnreachableError: a broker did not answer.
            TopicMissingError: no such topic or partition.
        """
        todo, offsets, budget_s = dict(wanted), dict[Place, int](), self.timeout_s
        while todo:
            futures = self._client.list_offsets(
                {TopicPartition(*place): spec for place, spec in todo.items()},
                isolation_level=level,
                request_timeout=self.timeout_s,
            )
            for place, future in futures.items():
                with self._naming(f"read offsets of topic {place.topic}", place.topic, right="Describe"):
                    try:
                        offsets[place.topic, place.partition] = int(future.result(self.timeout_s * 2).offset)
                    except KafkaException as error:
                        if error.args[0].name() not in PASSING or budget_s <= 0:
                            raise
            todo = {place: spec for place, spec in todo.items() if place not in offsets}
            if todo:
                threading.Event().wait(PAUSE_S)
                budget_s -= PAUSE_S
        return offsets

    def describe_group(self, group: str) -> Any:
        """Return a group as its coordinator describes it, once there is one: waits at most about ``timeout_s``.

        Call it before asking for a group's offsets: if the coordinator is not known yet, the client library crashes the
        process on that question (a null pointer in librdkafka 2.16, its issue 5040), but not on this one.

        Raises:
            AccessDeniedError, KafkaRequestError: the broker refuses.
            BrokerUnreachableError: there is no answer.
        """
        budget_s = self.timeout_s
        while True:
            (future,) = self._client.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=self.timeout_s
            ).values()
            with self._naming(f"describe group {group}", right="Describe"):
                try:
                    return future.result(self.timeout_s * 2)
                except KafkaException as error:
                    if error.args[0].name() not in COORDINATOR_COMING or budget_s <= 0:
                        raise
            threading.Event().wait(PAUSE_S)
            budget_s -= PAUSE_S

    def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics that another worker may create meanwhile.

        Raises:
            KafkaRequestError: the broker refused one; the message has its reason.
        """
        if specs:
            self._create(
                [NewTopic(s.name, s.partitions, replication_factor=s.replication, config=dict(s.config)) for s in specs]
            )

    def create_main_topic(self, name: str, *, partitions: int) -> None:
        """Create a user's topic with the brokers' default settings."""
        self._create([NewTopic(name, num_partitions=partitions, replication_factor=BROKER_DEFAULT)])

    def grow(self, topic: str, partitions: int) -> None:
        futures = self._client.create_partitions([NewPartitions(topic, partitions)], request_timeout=self.timeout_s)
        self._result(futures[topic], doing=f"add partitions to topic {topic}", topic=topic, right="Alter")

    def wait_for_topics(
        self, names: Sequence[str], partitions: Mapping[str, int] | None = None
    ) -> dict[str, TopicState]:
        """Wait until the metadata shows topics, as many `partitions`, and a leader for each; return their states.

        Raises:
            TopicMissingError: one was not shown in time.
        """
        budget_s, pause_s, least = self.timeout_s, 0.05, partitions or {}
        while True:
            states = self.describe_topics(names)
            ready = {name for name, s in states.items() if not s.leaderless and s.partitions >= least.get(name, 1)}
            late = [name for name in names if name not in ready]
            if not late:
                return states
            if budget_s <= 0:
                raise self.not_ready(late[0])
            threading.Event().wait(pause_s)
            budget_s -= pause_s
            pause_s = min(pause_s * 2, 1.0)

    def not_ready(self, created: str) -> TopicMissingError:
        """Return the error for a topic that was created and that a broker does not show in time."""
        remedy = f"It was created and is not ready after {self.timeout_s:g} s: look at the brokers' health"
        return TopicMissingError(created, self.connection.bootstrap, remedy)

    def _create(self, topics: list[NewTopic]) -> None:
        futures = self._client.create_topics(topics, request_timeout=self.timeout_s, operation_timeout=self.timeout_s)
        for name, future in futures.items():
            with self._naming(f"create topic {name}", name, right="Create"):
                try:
                    future.result(self.timeout_s * 2)
                except KafkaException as error:
                    if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                        raise

    def settings(self, topics: Iterable[str], *, tolerant: bool = False) -> dict[str, dict[str, str]]:
        """Return the effective settings of topics; nothing of a missing one, or, if `tolerant`, of a refused one."""
        return self._configs(ResourceType.TOPIC, topics, tolerant=tolerant)

    def _configs(self, kind: ResourceType, names: Iterable[str], *, tolerant: bool) -> dict[str, dict[str, str]]:
        resources = {ConfigResource(kind, name): name for name in names}
        if not resources:
            return {}
        answers = self._client.describe_configs(list(resources), request_timeout=self.timeout_s)
        configs: dict[str, dict[str, str]] = {}
        for resource, future in answers.items():
            name = resources[resource]
            topic = name if kind is ResourceType.TOPIC else None
            try:
                doing = f"read the settings of {kind.name.lower()} {name}"
                entries = self._result(future, doing=doing, topic=topic, right="DescribeConfigs")
            except TopicMissingError:
                continue
            except KafkaRequestError:
                if not tolerant:
                    raise
                continue
            configs[name] = {key: entry.value for key, entry in entries.items() if entry.value is not None}
        return configs

    def _result(self, future: Future[T], *, doing: str, topic: str | None = None, right: str = "") -> T:
        with self._naming(doing, topic, right=right):
            return future.result(self.timeout_s * 2)

    @contextmanager
    def _naming(self, doing: str, topic: str | None = None, *, right: str = "") -> Iterator[None]:
        try:
            yield
        except (KafkaException, FutureTimeoutError) as error:
            self._client.poll(0)  # serves the error callback: the client's own words on why
            cause = error if isinstance(error, KafkaException) else KafkaError(REQUEST_TIMED_OUT)
            raise named_error(
                cause, self.connection, doing=doing, topic=topic, tried_s=self.timeout_s, hints=self._hints, right=right
            ) from error
        self._client.poll(0)  # a broker has answered: what the client said until now explains no later failure
        self._hints.clear()

    def _note_error(self, error: KafkaError) -> None:
        self._hints.append(error.str())
        del self._hints[:-3]


def reach(connection: KafkaConnection) -> KafkaAdmin:
    """Return an administrator of a cluster that answers within ``REACH_S``.

    Raises:
        BrokerUnreachableError: no broker did.
    """
    KafkaAdmin(connection, timeout_s=REACH_S).cluster()
    return KafkaAdmin(connection)


def operation_names(listed: Iterable[Any] | None) -> frozenset[str] | None:
    """Return operations by name. Brokers without an authorizer list all; some brokers list none."""
    return None if listed is None else frozenset(operation.name for operation in listed)


def url_safe_topic_id(topic_id: Any) -> str:
    """Return a topic id as Kafka prints it.

    The client library prints plain base64, whose ``/`` would split a failure id; Kafka prints the URL-safe form.
    """
    raw = struct.pack(">qq", topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")

"""A group's topics, written as its workers would write them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from harness.operator import Operator
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers
from retryapp.core.topology import HandlerTopology, topic_specs
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_offsets

if TYPE_CHECKING:
    from retryapp.pipeline.archive import Archive
    from retryapp.pipeline.lake import Lake

CommandLine = Callable[..., tuple[int, Any]]
"""Runs a command of the pipeline by its name and words: (exit code, JSON)."""

tick = itertools.count(time.time_ns() // 1_000_000).__next__
"""The clock of the jobs: runs of one test never have the same time."""


@dataclass
class Group:
    """The retry, dead-letter and events topics of one handler, with names that no other test has."""

    connection: KafkaConnection
    partitions: int = 2
    has_main: bool = False
    """Whether the main topic is there as well."""
    topology: HandlerTopology = field(init=False)
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self.topology = HandlerTopology(group=f"g{name}", main=f"orders{name}" if self.has_main else "orders")
        self.producer = self.connection.client(Producer, acks="all", linger_ms=5)
        if self.has_main:
            self.admin.create_main_topic(self.topology.main, partitions=self.partitions)
        self.make()

    @property
    def operator(self) -> Operator:
        return Operator(self.connection.bootstrap)

    @property
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.connection)

    @property
    def where(self) -> tuple[str, ...]:
        """How a command finds it."""
        return ("--broker", self.connection.bootstrap, "--group", self.topology.group)

    def make(self) -> None:
        """Make all topics as a plan would."""
        sizes = {"partitions": self.partitions, "main_max_message_bytes": 1_048_588, "replication": 1}
        self.admin.create(topic_specs(self.topology, **sizes))
        self.admin.wait_for_topics(self.topology.owned)

    def make_again(self, topic: str) -> None:
        """Delete one of the topics and make it again under its name."""
        self.operator.delete_topic(topic)
        self.admin.create_main_topic(topic, partitions=self.partitions)
        self.admin.wait_for_topics([topic])
        self.producer = self.connection.client(Producer, acks="all", linger_ms=5)  # the old one knows the old topic

    def begin(self, topic: str, values: list[bytes], partition: int) -> Producer:
        """Publish values in a transaction that is open; return its writer."""
        producer = self.connection.client(Producer, transactional_id=uuid.uuid4().hex)
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, partition=partition, value=value)
        assert producer.flush(20) == 0
        return producer

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        arguments: dict[str, Any] = {"key": key, "value": value, "headers": list(headers), "partition": partition}
        self.producer.produce(topic, **arguments)

    def send_dead(self, count: int) -> None:
        """Publish many dead letters, spread over the partitions."""
        for number in range(count):
            headers = encode_metadata(dead(number))
            self.send(self.topology.dlq, number % self.partitions, b"k%d" % number, b"v" * 100, headers)
        self.flush()

    def places(self) -> Counter[tuple[str, int, int]]:
        """Count each place on the topics, without Spark."""
        topics = (*self.topology.retry_topics, self.topology.dlq, self.topology.events)
        return Counter((topic, *place[:2]) for topic in topics for place in read_offsets(self.connection, topic))

    def archive(self, lake: Lake, **options: Any) -> Archive:
        from retryapp.pipeline.archive import Archive

        return Archive(self.connection, lake, self.topology.group, now_ms=tick, **options)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        assert self.producer.flush(30) == 0

    def retry(self, partition: int, metadata: RetryMetadata, key: bytes, value: bytes) -> None:
        """Publish a record that waits."""
        self.send(self.topology.retry_topics[0], partition, key, value, encode_metadata(metadata))
        self.flush()

    def dead(
        self, partition: int, metadata: RetryMetadata, *, key: bytes | None = None, value: bytes | None = b"v"
    ) -> None:
        self.send(self.topology.dlq, partition, key, value, encode_metadata(metadata))
        self.flush()

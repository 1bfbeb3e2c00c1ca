"""A group's topics, written as its workers would write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from retryapp.core.headers import encode_metadata
from retryapp.core.lifecycle import Succeeded
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers, Origin, failure_id
from retryapp.core.topology import HandlerTopology, topic_specs
from retryapp.kafka import KafkaAdmin, KafkaConnection


@dataclass
class Group:
    """One handler's retry, dead-letter and events topics."""

    connection: KafkaConnection
    topology: HandlerTopology
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        """Make the writer."""
        self.producer = self.connection.client(Producer, acks="all", linger_ms=5)

    @property
    def admin(self) -> KafkaAdmin:
        """An administrator."""
        return KafkaAdmin(self.connection)

    def make(self, partitions: int = 2) -> None:
        """Make all topics as a plan would."""
        specs = topic_specs(
            self.topology,
            partitions=partitions,
            main_max_message_bytes=1_048_588,
            replication=1,
            longest_wait_ms=60_000,
        )
        self.admin.create(specs)
        self.admin.wait_for_topics(self.topology.owned)

    def remove(self, *topics: str) -> None:
        """Delete topics and wait until they are gone."""
        client = self.connection.client(AdminClient)
        for future in client.delete_topics(list(topics), operation_timeout=20).values():
            future.result(30)

    def metadata(self, metadata: RetryMetadata) -> Headers:
        """Return headers of this group."""
        return encode_metadata(metadata)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Publish a record."""
        arguments: dict[str, Any] = {"key": key, "value": value, "headers": list(headers), "partition": partition}
        self.producer.produce(topic, **arguments)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        assert self.producer.flush(30) == 0

    def retry(
        self, partition: int, metadata: RetryMetadata, *, key: bytes | None = None, value: bytes | None = b"v"
    ) -> None:
        """Publish a record that waits."""
        self.send(self.topology.retry_topics[0], partition, key, value, self.metadata(metadata))
        self.flush()

    def dead(
        self, partition: int, metadata: RetryMetadata, *, key: bytes | None = None, value: bytes | None = b"v"
    ) -> None:
        """Publish a dead letter."""
        self.send(self.topology.dlq, partition, key, value, self.metadata(metadata))
        self.flush()

    def succeeded(self, partition: int, offset: int, *, attempt: int = 2) -> None:
        """Publish the event of a success after failures."""
        origin = Origin(self.topology.main, "kq8G0bTz", partition, offset)
        event = Succeeded(
            group=self.topology.group,
            handler="shop.charge",
            failure_id=failure_id(self.topology.group, origin),
            origin=origin.text,
            attempt=attempt,
            started_ms=1,
            ended_ms=2,
            lateness_ms=0,
        )
        self.send(self.topology.events, partition, event.key, event.to_json())
        self.flush()

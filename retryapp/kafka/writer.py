"""Writes records and waits until all in-sync brokers have them; no transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from retryapp.core.hops import Outgoing
from retryapp.kafka.connection import KafkaConnection, named_error

if TYPE_CHECKING:
    from confluent_kafka import Message

WRITE_TIMEOUT_S: Final = 15.0


def write_records(connection: KafkaConnection, records: Iterable[Outgoing], *, doing: str, topic: str) -> None:
    """Append records, those of a partition in order; return once all are durable.

    Args:
        connection: the cluster.
        records: what to append.
        doing: for an error's text, as `write the owner mark to topic orders`.
        topic: the same.

    Raises:
        BrokerUnreachableError: no broker answered in time; some of the records may be there.
        TopicMissingError: there is no such topic.
        AccessDeniedError: we may not write there.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = connection.client(
        Producer,
        acks="all",
        enable_idempotence=True,
        allow_auto_create_topics=False,
        delivery_timeout_ms=int(WRITE_TIMEOUT_S * 1000),
    )
    for record in records:
        producer.produce(
            record.topic, key=record.key, value=record.value, partition=record.partition, on_delivery=delivered
        )
    unsent = producer.flush(WRITE_TIMEOUT_S + 1)
    error = failures[0] if failures else (KafkaError(KafkaError.REQUEST_TIMED_OUT) if unsent else None)
    if error is not None:
        raise named_error(error, connection, doing=doing, topic=topic, tried_s=WRITE_TIMEOUT_S) from KafkaException(
            error
        )

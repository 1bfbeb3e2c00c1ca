"""Reading retry, redelivery and dead-letter topics while they are written, as a committed reader outside the group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from retryapp.core import names
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.demo.balance import HandOff, Station
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.kafka.connection import client_log

_BATCH = 2_000

RawHeaders = Iterable[tuple[str, str | bytes | None]]
"""Headers as either client gives them."""


def stations(topology: HandlerTopology) -> dict[str, Station]:
    """Return the topics to watch, each with what it is."""
    return (
        dict.fromkeys(topology.retry_topics, Station.RETRY)
        | {topology.redelivery: Station.REDELIVERY}
        | {topology.dlq: Station.DLQ}
    )


def read_handoff(station: Station, value: bytes | None, headers: RawHeaders) -> HandOff:
    """Read a record of ours without the library's own decoder, so that the count stands beside it.

    Args:
        station: of the record's topic.
        value: the flight's JSON, untouched.
        headers: all headers of the record.

    Raises:
        ValueError: a header that must be there is missing, or the value is no flight.
    """
    texts = {name: text.decode() if isinstance(text, bytes) else text or "" for name, text in headers}
    try:
        due = texts.get(names.RETRY_DUE_MS)
        return HandOff(
            station=station,
            flight_id=int(json.loads(value or b"")["id"]),
            failure_id=f"{texts[names.RETRY_GROUP]}/{texts[names.RETRY_ORIGIN]}",
            attempt=int(texts[names.RETRY_ATTEMPT]),
            due_at_ms=None if due is None else int(due),
            reason=texts.get(names.RETRY_REASON),
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"a record on a {station} topic cannot be counted: {error!r}; headers {sorted(texts)}"
        raise ValueError(message) from error


def read_handoffs(connection: KafkaConnection, topics: Mapping[str, Station]) -> list[HandOff]:
    """Read the topics from their beginning to their committed end.

    Raises:
        TopicMissingError: a topic does not exist.
    """
    found: list[HandOff] = []
    for topic, station in topics.items():
        found.extend(_of_record(station, record) for record in read_topic(connection, topic))
    return found


class TopicWatch:
    """Follows the topics from their beginning; never joins a group, never commits."""

    def __init__(self, connection: KafkaConnection, topics: Mapping[str, Station], *, partitions: int) -> None:
        """Assign all partitions of topics that exist.

        Args:
            connection: the cluster.
            topics: what to follow.
            partitions: of each topic.
        """
        self._topics = topics
        self._consumer = Consumer(
            connection.client_config(
                group_id="retryapp-demo-watch",  # the client asks for one; nothing joins or commits
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                fetch_wait_max_ms=100,
            ),
            logger=client_log,
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for topic in topics for number in range(partitions)])

    def read(self) -> Sequence[HandOff]:
        """Return what has come since the last call, at most one batch; does not wait."""
        found = []
        for message in self._consumer.consume(_BATCH, timeout=0):
            topic = message.topic()
            if message.error() is None and topic is not None:
                raw = message.headers() or ()
                pairs = tuple(raw.items()) if isinstance(raw, dict) else tuple(raw)
                found.append(read_handoff(self._topics[topic], message.value(), pairs))
        return found

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def _of_record(station: Station, record: Record) -> HandOff:
    return read_handoff(station, record.value, record.headers)

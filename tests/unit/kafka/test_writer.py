"""Writers of records, against the broker that the client library has for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Producer

from retryapp.core.hops import Outgoing
from retryapp.kafka import KafkaConnection
from retryapp.kafka.writer import write_records, write_together


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Address of a broker in this process, with a topic `orders`."""
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "127.0.0.1:1"})
    owner.list_topics("orders", 10)
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(0)  # it lives until here


def record() -> Outgoing:
    return Outgoing("orders", 0, None, b"x", ())


@pytest.mark.parametrize("write", [write_records, write_together])
def test_writers_wait_while_the_queue_of_the_client_is_full(
    bootstrap: str, write: Callable[[KafkaConnection, str, Sequence[Outgoing]], None]
) -> None:
    """At 100,000 records, by the client's default, they raised its `BufferError`."""
    write(KafkaConnection(bootstrap, {"queue.buffering.max.messages": "1"}), "orders", [record()] * 3)

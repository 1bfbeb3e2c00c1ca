"""A handler with fresh names, and writers."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from retryapp.core.topology import HandlerTopology


@pytest.fixture
def topology() -> HandlerTopology:
    return HandlerTopology(group=f"g{uuid.uuid4().hex[:8]}", main="orders", delays_ms=(1_000, 60_000))


@pytest.fixture
def publish(bootstrap: str) -> Callable[..., None]:
    """Publish records outside a transaction: (topic, partition, key, value, headers)."""

    def send(topic: str, partition: int, key: bytes | None, value: bytes | None, headers: object = ()) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        producer.produce(topic, partition=partition, key=key, value=value, headers=list(headers))  # type: ignore[call-overload]
        assert producer.flush(10) == 0

    return send


@pytest.fixture
def transact(bootstrap: str) -> Callable[..., None]:
    """Publish values to a partition in one transaction, which is committed, aborted or left open."""

    def send(topic: str, partition: int, values: list[bytes], *, end: str = "commit") -> Producer:
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(10)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, partition=partition, value=value)
        producer.flush(10)
        if end == "commit":
            producer.commit_transaction(10)
        elif end == "abort":
            producer.abort_transaction(10)
        return producer

    return send

"""A real broker, and topics and writers with fresh names for one test."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewTopic

from retryapp.kafka import KafkaAdmin, KafkaConnection

MakeTopic = Callable[..., str]


@pytest.fixture
def connection(bootstrap: str) -> KafkaConnection:
    """The test session's broker."""
    return KafkaConnection(bootstrap)


@pytest.fixture
def admin(connection: KafkaConnection) -> KafkaAdmin:
    return KafkaAdmin(connection)


@pytest.fixture
def make_topic(admin: KafkaAdmin) -> MakeTopic:
    """Make a topic, by default with a name that no other test has, and settings (``_`` stands for ``.``)."""

    def make(partitions: int = 1, name: str | None = None, **config: str) -> str:
        topic = name or f"t{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin._client.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(10)
        admin.wait_for_topics([topic])
        return topic

    return make

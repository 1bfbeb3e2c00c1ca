"""Clients of lanes against a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.ports import TopicPartition
from retryapp.runtime.clients.lifecycle import ClientSettings

MakeTopic = Callable[..., str]


@pytest.fixture
def make_topic(bootstrap: str) -> MakeTopic:
    """Make a topic with a name that no other test has, and settings (``_`` stands for ``.``)."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"t{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = AdminClient({"bootstrap.servers": bootstrap})  # has to outlive the answer
        admin.create_topics([wanted])[name].result(10)
        KafkaAdmin(KafkaConnection(bootstrap)).wait_for_topics([name])
        return name

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> TopicPartition:
    """A partition of a topic that no other test has."""
    return TopicPartition(make_topic(), 0)


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    """Settings as a worker makes them."""
    return ClientSettings(
        connection={"bootstrap_servers": bootstrap},
        client_id=f"c{uuid.uuid4().hex[:8]}",
        request_timeout_ms=40_000,
        max_batch_size=262_144,
        max_request_size=1_048_576,
    )

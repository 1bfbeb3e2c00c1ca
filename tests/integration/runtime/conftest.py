"""Clients of lanes against a real broker."""

from __future__ import annotations

import uuid

import pytest

from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.ports import TopicPartition
from retryapp.runtime.clients.lifecycle import ClientSettings


@pytest.fixture
def topic(bootstrap: str) -> TopicPartition:
    """A partition of a topic that no other test has."""
    admin, name = KafkaAdmin(KafkaConnection(bootstrap)), f"t{uuid.uuid4().hex[:8]}"
    admin.create_main_topic(name, partitions=1)
    admin.wait_for_topics([name])
    return TopicPartition(name, 0)


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

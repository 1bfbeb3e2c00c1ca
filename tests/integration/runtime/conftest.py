"""Clients of lanes against a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from retryapp.ports import TopicPartition
from retryapp.runtime.clients.lifecycle import ClientSettings

MakeTopic = Callable[..., str]


@pytest.fixture
def topic(make_topic: MakeTopic) -> TopicPartition:
    return TopicPartition(make_topic(), 0)


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    return ClientSettings(
        connection={"bootstrap_servers": bootstrap},
        client_id=f"c{uuid.uuid4().hex[:8]}",
        request_timeout_ms=40_000,
        max_batch_size=262_144,
        max_request_size=1_048_576,
    )

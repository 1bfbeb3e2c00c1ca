"""Which partitions of others' topics take no records."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

from retryapp.core.errors import BrokerUnreachableError, TopicMissingError
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.runtime.clients import destinations
from retryapp.runtime.clients.destinations import KafkaDestinations

TOPIC = "payments"


@pytest.mark.parametrize(
    ("leader", "replicas", "in_sync", "least", "why"),
    [
        (1, 2, 2, 2, None),
        (1, 2, 1, 2, "copies in sync: 1, min.insync.replicas: 2"),
        (1, 2, 1, 3, "copies in sync: 1, min.insync.replicas: 3"),
        (1, 2, 2, 3, None),  # all that it may have
        (1, 1, 1, 2, None),
        (-1, 2, 0, 1, "it has no leader"),
        (None, 2, 0, 1, "it has no leader"),
    ],
)
async def test_a_partition_that_takes_no_records_is_seen(
    monkeypatch: pytest.MonkeyPatch, leader: int | None, replicas: int, in_sync: int, least: int, why: str | None
) -> None:
    """Before a transaction has records for it."""
    node = None if leader is None else SimpleNamespace(id=leader)
    partition = SimpleNamespace(id=5, leader=node, replicas=["a node"] * replicas, isr=["a node"] * in_sync)
    admin = create_autospec(KafkaAdmin, instance=True)
    admin.describe.return_value = SimpleNamespace(
        is_internal=False, authorized_operations=None, partitions=[partition], topic_id="x"
    )
    admin.settings.return_value = {TOPIC: {"min.insync.replicas": str(least)}}
    monkeypatch.setattr(destinations, "KafkaAdmin", lambda *_, **__: admin)
    monkeypatch.setattr(destinations, "url_safe_topic_id", str)
    look = await KafkaDestinations(lambda: KafkaConnection("nowhere:9092")).look(TOPIC)
    assert look is not None
    assert look.closed == ({} if why is None else {5: why})


async def test_a_client_that_no_broker_answers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old client waits for a controller that may be dead, and does not ask for the new one."""
    admin = create_autospec(KafkaAdmin, instance=True)
    admin.describe.side_effect = [
        BrokerUnreachableError("nowhere:9092", "timed out"),
        *[TopicMissingError(TOPIC, "")] * 2,
    ]
    made: list[str] = []

    def make(connection: KafkaConnection, **_: object) -> KafkaAdmin:
        made.append(connection.bootstrap)
        return admin

    monkeypatch.setattr(destinations, "KafkaAdmin", make)
    looks = KafkaDestinations(lambda: KafkaConnection("nowhere:9092"))
    with pytest.raises(BrokerUnreachableError):
        await looks.look(TOPIC)
    assert [await looks.look(TOPIC), await looks.look(TOPIC), len(made)] == [None, None, 2]

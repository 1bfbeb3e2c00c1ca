"""How long a producer waits for the markers of its former transaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import ConcurrentTransactions

from retryapp.runtime.clients.lifecycle import MARKERS_S, begin_promptly

TP = ClientTopicPartition("orders", 0)


@pytest.mark.parametrize(("prompt", "pause_s"), [(True, MARKERS_S), (False, 0.02)])
async def test_only_producers_of_lanes_ask_again_soon(
    prompt: bool, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library's 20 ms would be in many a hand-off; the user's own producers keep them."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="app.orders.0")
    if prompt:
        begin_promptly(producer)
    sender, pauses = producer._sender, list[float]()
    sender._txn_manager.set_pid_and_epoch(1, 1)

    async def coordinator(*_: Any) -> int:
        return 1

    async def refuse(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(errors=[("orders", [(0, ConcurrentTransactions.errno)])])

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(sender, "_find_coordinator", coordinator)
    monkeypatch.setattr(sender.client, "send", refuse)
    monkeypatch.setattr("aiokafka.producer.sender.asyncio.sleep", sleep)
    assert not await sender._do_add_partitions_to_txn({TP})
    assert pauses == [pause_s]
    producer._closed = True  # it was never started

"""How long a producer waits for the markers of its former transaction, and what it must not send until then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import ConcurrentTransactions, TopicAuthorizationFailedError

from retryapp.core.lane_errors import MarkersLateError
from retryapp.runtime.clients.lifecycle import MARKERS_LATE_S, MARKERS_S, begin_promptly, send_nothing_unannounced

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


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(ConcurrentTransactions, MarkersLateError), (TopicAuthorizationFailedError, TopicAuthorizationFailedError)],
)
@pytest.mark.parametrize("guarded", [True, False], ids=["a lane's producer", "the library's"])
async def test_records_of_a_transaction_that_has_not_begun_are_never_sent(
    refusal: Any, error: type[Exception], guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be committed with the former transaction, whose markers are not written yet, and then repeated."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="app.orders.0")
    begin_promptly(producer)
    if guarded:
        send_nothing_unannounced(producer)
    sender, manager, accumulator = producer._sender, producer._txn_manager, producer._message_accumulator
    manager.set_pid_and_epoch(1, 1)
    manager.begin_transaction()
    over, now_s = manager.wait_for_transaction_end(), [0.0]
    batch = producer.create_batch()
    batch.append(key=None, value=b"{}", timestamp=None)
    manager.maybe_add_partition_to_txn(TP)
    await accumulator.add_batch(batch, TP, 5)
    looked, sent = asyncio.Event(), []
    drain = accumulator.drain_by_nodes

    def look(**named: Any) -> Any:
        found = drain(**named)
        if over.done():
            sent.extend(found[0].values())
            looked.set()
        return found

    async def coordinator(*_: Any) -> int:
        return 1

    async def refuse(*_: Any, **__: Any) -> Any:
        now_s[0] += MARKERS_LATE_S
        return SimpleNamespace(errors=[(TP.topic, [(TP.partition, refusal.errno)])])

    async def produce(*_: Any) -> None:
        pass

    monkeypatch.setattr("retryapp.runtime.clients.lifecycle.monotonic", lambda: now_s[0])
    monkeypatch.setattr(accumulator, "_cluster", SimpleNamespace(leader_for_partition=lambda _: 1))
    monkeypatch.setattr(accumulator, "drain_by_nodes", look)
    monkeypatch.setattr(sender, "_find_coordinator", coordinator)
    monkeypatch.setattr(sender, "_send_produce_req", produce)
    monkeypatch.setattr(sender.client, "send", refuse)
    routine = asyncio.create_task(sender._sender_routine())
    async with asyncio.timeout(5):
        await looked.wait()
    routine.cancel()
    with suppress(asyncio.CancelledError):
        await routine
    assert isinstance(over.exception(), error)
    assert len(sent) == (0 if guarded else 1)
    producer._closed = True  # it was never started

"""A topic that takes no records for want of copies in sync: its lane closes in time, and its page says why."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import (
    ConcurrentTransactions,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
)

from retryapp.core.lane_errors import MarkersLateError
from retryapp.engine.lane.limits import LaneLimits
from retryapp.kafka.positions import TRANSACTION_TIMEOUT_MS
from retryapp.ports import Event, Observation
from retryapp.runtime.clients.lifecycle import MARKERS_LATE_S, REFUSED_S, begin_promptly, give_up_on_few_copies
from retryapp.runtime.observe.lanes import LaneWatch
from retryapp.testing import VirtualClock

TP = ClientTopicPartition("app.orders.pending.changelog", 0)


@pytest.mark.parametrize(
    ("error", "old", "fails"),
    [
        (NotEnoughReplicasError, False, False),  # a broker also says so for a moment after each transaction
        (NotEnoughReplicasError, True, True),
        (NotEnoughReplicasAfterAppendError, True, True),
        (NotLeaderForPartitionError, True, False),
    ],
)
async def test_a_batch_is_given_up_that_was_refused_for_too_long(
    error: Any, old: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the broker ends the transaction first, and the lane hears that it was fenced. A leader that moves passes."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="app.orders.0")
    give_up_on_few_copies(producer)
    sender = producer._sender
    sender._txn_manager.set_pid_and_epoch(1, 1)
    failed: list[Exception] = []
    now_s = 1000.0
    monkeypatch.setattr("retryapp.runtime.clients.lifecycle.monotonic", lambda: now_s)
    since_s = now_s - REFUSED_S + (-0.1 if old else 0.1)
    batch = SimpleNamespace(get_data_buffer=bytes, _ctime=since_s, failure=lambda exception: failed.append(exception))

    async def refuse(*_: Any, **__: Any) -> Any:
        refusal = (TP.partition, error.errno, -1, -1, -1)
        return SimpleNamespace(API_VERSION=7, topics=[(TP.topic, [refusal])])

    async def no_wait() -> None:
        pass

    again: list[Any] = []
    monkeypatch.setattr(sender.client, "send", refuse)
    monkeypatch.setattr(sender.client, "force_metadata_update", lambda: None)
    monkeypatch.setattr(sender.client, "_maybe_wait_metadata", no_wait)
    monkeypatch.setattr(sender._message_accumulator, "reenqueue", again.append)
    sender._in_flight.add(1)
    sender._muted_partitions.add(TP)
    await asyncio.wait_for(sender._send_produce_req(1, {TP: batch}), 5)
    assert ([type(each) for each in failed], again) == (([error], []) if fails else ([], [batch]))
    assert (sender._in_flight, sender._muted_partitions) == (set(), set())
    producer._closed = True  # it was never started


async def test_a_transaction_is_given_up_whose_former_one_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the lane's own deadline, whose error would not say what it waited for."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="app.orders.0")
    begin_promptly(producer)
    sender, now_s = producer._sender, 1000.0
    sender._txn_manager.set_pid_and_epoch(1, 1)
    sender._txn_manager.begin_transaction()
    over = sender._txn_manager.wait_for_transaction_end()

    async def coordinator(*_: Any) -> int:
        return 1

    async def refuse(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(errors=[(TP.topic, [(TP.partition, ConcurrentTransactions.errno)])])

    monkeypatch.setattr("retryapp.runtime.clients.lifecycle.monotonic", lambda: now_s)
    monkeypatch.setattr(sender, "_find_coordinator", coordinator)
    monkeypatch.setattr(sender.client, "send", refuse)
    for late_s in (0.0, MARKERS_LATE_S):
        now_s = 1000.0 + late_s
        await sender._do_add_partitions_to_txn({TP})
        assert not over.done()
    now_s += 0.1
    await sender._do_add_partitions_to_txn({TP})
    with pytest.raises(MarkersLateError, match=r"lane app\.orders\.0: .* no leader, or too few copies in sync"):
        over.result()
    producer._closed = True  # it was never started


def test_the_limits_are_below_what_would_hide_the_cause() -> None:
    """The broker's end of the transaction, and the lane's own deadline of a commit."""
    assert REFUSED_S * 1000 < TRANSACTION_TIMEOUT_MS
    assert LaneLimits().commit_s > MARKERS_LATE_S


def test_a_lane_that_takes_too_long_to_open_still_shows_what_closed_it() -> None:
    """Until it was open: its next error may have nothing to do with that one."""
    watch = LaneWatch(VirtualClock())

    def told(event: Event, error_type: str | None = None, message: str | None = None) -> str | None:
        watch.observe(Observation(event=event, handler="orders", partition=0, error_type=error_type, message=message))
        return watch.look("orders", 0, 1, "opening", None).error

    slow = (Event.LANE_FAILED, "TimeoutError", "opening it took longer than 30 s")
    refused = "TooFewCopiesError: log[0] takes no records"
    assert told(Event.LANE_FAILED, *refused.split(": ")) == refused
    for _ in range(2):
        assert told(*slow) == f"TimeoutError: opening it took longer than 30 s; before that, {refused}"
    told(Event.LANE_OPENED)
    assert told(*slow) == "TimeoutError: opening it took longer than 30 s"


def test_that_the_group_took_a_partition_away_is_no_error_once_it_is_back() -> None:
    """A failure is told on, with its age."""
    watch = LaneWatch(VirtualClock())

    def told(event: Event, message: str | None = None, **facts: Any) -> str | None:
        watch.observe(Observation(event=event, handler="orders", partition=0, message=message, **facts))
        return watch.look("orders", 0, 1, "open", None).error

    assert told(Event.LANE_CLOSED, "the group is rebalancing") == "the group is rebalancing"
    assert told(Event.LANE_OPENED) is None
    failed = told(Event.LANE_FAILED, "gone", error_type="OSError")
    assert failed == told(Event.LANE_OPENED) == "OSError: gone"

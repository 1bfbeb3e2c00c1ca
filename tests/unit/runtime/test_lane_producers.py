"""A lane's producer: how long it waits for its former transaction, and for copies, and what it must not send then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from retryapp.core.lane_errors import MarkersLateError, TopicGoneError
from retryapp.engine.lane.limits import LaneLimits
from retryapp.kafka.positions import TRANSACTION_TIMEOUT_MS
from retryapp.runtime.clients.lifecycle import (
    MARKERS_LATE_S,
    MARKERS_S,
    REFUSED_S,
    begin_promptly,
    give_up_on_few_copies,
    send_nothing_unannounced,
)

TP = ClientTopicPartition("orders", 0)


class Time:
    """What the clients' clock says."""

    now_s = 1_000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr("retryapp.runtime.clients.lifecycle.monotonic", lambda: made.now_s)
    return made


@pytest.fixture
async def producer() -> AsyncIterator[Any]:
    """The client library's, of a lane that has its session; it is never started."""
    made = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", transactional_id="app.orders.0")
    made._txn_manager.set_pid_and_epoch(1, 1)
    yield made
    made._closed = True


@pytest.fixture
def refuse(producer: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the coordinator refuse that a partition joins a transaction, always with this error."""

    def always(error: Any, asked: Callable[[], object] = bool) -> None:
        async def coordinator(*_: Any) -> int:
            return 1

        async def answer(*_: Any, **__: Any) -> Any:
            asked()
            return SimpleNamespace(errors=[(TP.topic, [(TP.partition, error.errno)])])

        monkeypatch.setattr(producer._sender, "_find_coordinator", coordinator)
        monkeypatch.setattr(producer._sender.client, "send", answer)

    return always


@pytest.mark.parametrize(("prompt", "pause_s"), [(True, MARKERS_S), (False, 0.02)])
async def test_only_producers_of_lanes_ask_again_soon(
    producer: Any, refuse: Any, prompt: bool, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library's 20 ms would be in many a hand-off; the user's own producers keep them."""
    if prompt:
        begin_promptly(producer)
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    refuse(ConcurrentTransactions)
    monkeypatch.setattr("aiokafka.producer.sender.asyncio.sleep", sleep)
    assert not await producer._sender._do_add_partitions_to_txn({TP})
    assert pauses == [pause_s]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(ConcurrentTransactions, MarkersLateError), (TopicAuthorizationFailedError, TopicAuthorizationFailedError)],
)
@pytest.mark.parametrize("guarded", [True, False], ids=["a lane's producer", "the library's"])
async def test_records_of_a_transaction_that_has_not_begun_are_never_sent(
    producer: Any,
    refuse: Any,
    time: Time,
    refusal: Any,
    error: type[Exception],
    guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would be committed with the former transaction, whose markers are not written yet, and then repeated."""
    begin_promptly(producer)
    if guarded:
        send_nothing_unannounced(producer)
    sender, manager, accumulator = producer._sender, producer._txn_manager, producer._message_accumulator
    manager.begin_transaction()
    over = manager.wait_for_transaction_end()
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

    def pass_time() -> None:
        time.now_s += MARKERS_LATE_S

    async def produce(*_: Any) -> None:
        pass

    refuse(refusal, asked=pass_time)
    monkeypatch.setattr(accumulator, "_cluster", SimpleNamespace(leader_for_partition=lambda _: 1))
    monkeypatch.setattr(accumulator, "drain_by_nodes", look)
    monkeypatch.setattr(sender, "_send_produce_req", produce)
    routine = asyncio.create_task(sender._sender_routine())
    await looked.wait()
    routine.cancel()
    with suppress(asyncio.CancelledError):
        await routine
    assert isinstance(over.exception(), error)
    assert len(sent) == (0 if guarded else 1)


@pytest.mark.parametrize(
    ("refusal", "after_s", "error", "text"),
    [
        (
            ConcurrentTransactions,
            MARKERS_LATE_S,
            MarkersLateError,
            r"lane app\.orders\.0: .* no leader, or too few copies",
        ),
        (UnknownTopicOrPartitionError, REFUSED_S, TopicGoneError, "topic orders is not there"),
    ],
)
async def test_a_transaction_is_given_up_that_cannot_begin(
    producer: Any, refuse: Any, time: Time, refusal: Any, after_s: float, error: type[Exception], text: str
) -> None:
    """Its former one does not end, or a topic is gone; before a deadline whose error would not say which."""
    begin_promptly(producer)
    refuse(refusal)
    producer._txn_manager.begin_transaction()
    over = producer._txn_manager.wait_for_transaction_end()
    for passed_s in (0.0, after_s, 0.1):
        assert not over.done()
        time.now_s += passed_s
        await producer._sender._do_add_partitions_to_txn({TP})
    with pytest.raises(error, match=text):
        over.result()


async def test_a_topic_that_comes_back_ends_the_wait_for_it(producer: Any, refuse: Any, time: Time) -> None:
    """Two short absences are no long one."""
    begin_promptly(producer)
    producer._txn_manager.begin_transaction()
    over = producer._txn_manager.wait_for_transaction_end()
    for answer in (UnknownTopicOrPartitionError, CoordinatorLoadInProgressError, UnknownTopicOrPartitionError):
        refuse(answer)
        await producer._sender._do_add_partitions_to_txn({TP})
        time.now_s += REFUSED_S
    await producer._sender._do_add_partitions_to_txn({TP})
    assert not over.done()


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
    producer: Any, time: Time, error: Any, old: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the broker ends the transaction first, and the lane hears that it was fenced. A leader that moves passes."""
    give_up_on_few_copies(producer)
    sender = producer._sender
    failed: list[Exception] = []
    since_s = time.now_s - REFUSED_S + (-0.1 if old else 0.1)
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
    await sender._send_produce_req(1, {TP: batch})
    assert ([type(each) for each in failed], again) == (([error], []) if fails else ([], [batch]))
    assert (sender._in_flight, sender._muted_partitions) == (set(), set())


def test_the_limits_are_below_what_would_hide_the_cause() -> None:
    """The broker's end of the transaction, and the lane's own deadline of a commit."""
    assert REFUSED_S * 1000 < TRANSACTION_TIMEOUT_MS
    assert LaneLimits().commit_s > MARKERS_LATE_S

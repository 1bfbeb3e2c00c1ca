"""What a handler publishes is there when its attempt was fine, once, and never else."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from doubles import EVENTS, MAIN, BankDownError, Stubborn, problems, serving
from pydantic import BaseModel, Field

from retryapp.core.errors import LatePublishError, PublishRefusedError
from retryapp.core.lifecycle import Succeeded, decode_event
from retryapp.core.policy import RetryPolicy
from retryapp.core.publication import TopicLook, partition_of
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.handler.publish import MAX_BYTES, MAX_RECORDS, Destinations, Outbox
from retryapp.ports import Event
from retryapp.testing import MemoryDestinations, MemoryPartition, VirtualClock

OUT = "payments"
DAY = RetryPolicy("1d")


async def publish(value: bytes, record: Delivery) -> None:
    record.publish(OUT, b"done " + value, key=record.key, headers=(("trace", b"1"), ("trace", None)))


async def publish_and_fail(value: bytes, record: Delivery) -> None:
    """Publish a result, and fail at the first two attempts."""
    record.publish(OUT, b"%s %d" % (value, record.attempt))
    if record.attempt < 3:
        raise BankDownError


def results(partition: MemoryPartition, number: int = 0) -> list[bytes | None]:
    """Return what a committed reader of the output topic sees."""
    return [record.value for record in partition.records(OUT, number)]


# -- with the record, or not at all -----------------------------------------------------------------------------------


async def test_a_result_is_published_with_the_offset_of_its_record() -> None:
    """In one transaction, with key and headers as given."""
    async with MemoryPartition(publish) as orders:
        await orders.send(b"1", b"2", key=b"k")
        (batch,) = [batch for batch in orders.transport.batches if any(o.topic == OUT for o in batch.publishes)]
        assert batch.offsets == {MAIN: 2}
        first, second = orders.records(OUT)
        assert (first.key, first.value, first.headers) == (b"k", b"done 1", (("trace", b"1"), ("trace", None)))
        assert second.value == b"done 2"
        told = orders.observer.of(Event.PUBLISHED)
        assert [(o.handler, o.topic, o.count) for o in told] == [("orders", OUT, 1), ("orders", OUT, 1)]


async def test_a_plain_function_publishes_in_its_thread() -> None:
    """And nothing else is needed for it."""
    threads = set()

    def handler(value: bytes, record: Delivery) -> None:
        threads.add(threading.current_thread())
        record.publish(OUT, value)

    async with MemoryPartition(handler) as orders:
        await orders.send(b"1")
        await orders.until(lambda: results(orders) == [b"1"])
    assert threading.main_thread() not in threads


async def test_only_the_attempt_that_was_fine_publishes() -> None:
    """Two fail and are dropped; the third one's result comes with the event that tells of it."""
    async with serving(publish_and_fail, "1s 2s", b"order") as (orders, _):
        await orders.advance(1_000)
        assert results(orders) == []
        await orders.advance(2_000)
        assert results(orders) == [b"order 3"]
        (batch,) = [batch for batch in orders.transport.batches if any(o.topic == OUT for o in batch.publishes)]
        assert [out.topic for out in batch.publishes] == [OUT, EVENTS]
        (event,) = orders.records(EVENTS)
        told = decode_event(event.value or b"")
        assert isinstance(told, Succeeded)
        assert (event.key, told.attempt, told.lateness_ms) == (b"app/orders@kq8G0bTz/0/0", 3, 0)
        assert [o.count for o in orders.observer.of(Event.PUBLISHED)] == [1], "what was dropped is not counted"


@pytest.mark.parametrize("swallows", [True, False])
async def test_an_attempt_that_took_too_long_publishes_nothing(swallows: bool) -> None:
    """Neither what it published before its time-out, nor what it publishes while it cleans up, nor afterwards."""
    stubborn, errors = Stubborn(), list[BaseException]()

    async def handler(value: bytes, record: Delivery) -> None:
        record.publish(OUT, b"before")
        try:
            if swallows:
                await stubborn(value)
            else:
                await stubborn.over.wait()
        finally:
            try:
                record.publish(OUT, b"after")
            except LatePublishError as exc:
                errors.append(exc)

    async with serving(handler, RetryPolicy("1d", timeout="1s"), b"order") as (orders, _):
        await orders.advance(1_000)
        await orders.advance(2_000)  # it is left to itself
        assert orders.waiting == {"1d": 1}
        stubborn.over.set()
        await orders.settle()
        assert results(orders) == []
    assert len(errors) == swallows


async def test_what_a_task_publishes_after_its_handler_has_ended_is_an_error_of_that_task() -> None:
    """It joins nobody's turn: neither its own record's nor the next one's."""
    left: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    async def later(record: Delivery) -> None:
        await go_on.wait()
        record.publish(OUT, b"late")

    async def handler(value: bytes, record: Delivery) -> None:
        record.publish(OUT, value)
        if not left:
            left.append(asyncio.create_task(later(record)))

    async with MemoryPartition(handler) as orders:
        await orders.send(b"1")
        go_on.set()
        await orders.send(b"2")
        assert results(orders) == [b"1", b"2"]
        assert isinstance(left[0].exception(), LatePublishError)


async def test_a_run_that_ends_while_a_thread_publishes_takes_nothing(clock: VirtualClock) -> None:
    """However close: what `publish` returned for is in the turn, what it raised for is not."""
    outbox = Outbox(Destinations(MemoryDestinations(), clock, tuple), "a record", 1_000)

    def ends_meanwhile() -> Iterator[tuple[str, bytes]]:
        assert not outbox.close()
        yield "trace", b"1"

    with pytest.raises(LatePublishError, match="that was given a record is over"):
        outbox.put(OUT, b"v", None, ends_meanwhile(), None)
    assert not outbox.close()


# -- what can be published --------------------------------------------------------------------------------------------


class Payment(BaseModel):
    """A model with a field that JSON knows under another name."""

    cents: int = Field(alias="amountInCents")


@dataclass
class Receipt:
    """A plain dataclass."""

    number: int


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b"raw", b"raw"), (bytearray(b"raw"), b"raw"), (memoryview(b"raw"), b"raw"), (None, None),
        ({"id": 1, "name": "Zoë"}, '{"id":1,"name":"Zoë"}'.encode()), ([1, 2], b"[1,2]"),
        (Payment(amountInCents=5), b'{"amountInCents":5}'), (Receipt(3), b'{"number":3}'),
    ],
)  # fmt: skip
async def test_a_value_is_bytes_or_becomes_the_json_that_handlers_read(value: Any, sent: bytes | None) -> None:
    """A model's own handler reads back what was published."""

    async def handler(_value: bytes, record: Delivery) -> None:
        record.publish(OUT, value, key=b"k")

    async with MemoryPartition(handler) as orders:
        await orders.send(b"1")
        assert results(orders) == [sent]


@pytest.mark.parametrize(
    ("topic", "options", "problem"),
    [
        (OUT, {"value": "text"}, "value is str: say value.encode()"),
        (OUT, {"value": object()}, "value is object, expected bytes"),
        (OUT, {"key": "text"}, "key is str, expected bytes or None"),
        (OUT, {"partition": -1}, "partition is -1"),
        (OUT, {"partition": 4}, "partition 4 of 4"),
        (OUT, {"headers": ("name", b"1")}, "headers are pairs"),
        (OUT, {"headers": (("name", "text"),)}, "header 'name' is not a text with bytes"),
        (OUT, {"headers": (("\udcff", b"1"),)}, "is not UTF-8"),
        (OUT, {"value": bytes(1_048_577)}, "a lane's producer takes at most 1048576"),
        ("small", {"value": bytes(1_000)}, "the topic at most 1000"),
        ("compacted", {}, "its records need a key"),
        ("app.orders.retry", {}, "this topic is retryapp's own"),
        ("app.orders.pending.changelog", {}, "this topic is retryapp's own"),
        ("no topic", {}, "no name of a topic"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
async def test_what_cannot_be_published_fails_the_attempt_with_its_name(
    topic: str, options: dict[str, Any], problem: str, known: bool
) -> None:
    """At the call, or after the handler where the topic has to be looked at first; the partition goes on."""
    topics = MemoryDestinations(
        {OUT: 4, "small": TopicLook(4, max_bytes=1_000), "compacted": TopicLook(4, compacted=True)}
    )

    async def handler(value: bytes, record: Delivery) -> None:
        if value == b"bad":
            record.publish(topic, **{"value": b"v", **options})
        elif known and topic in (topics.topics or ()):
            record.publish(topic, b"v", key=b"k")

    async with serving(handler, DAY, b"fine", b"bad", b"fine", destinations=topics) as (orders, _):
        assert (orders.waiting, orders.transport.offsets[MAIN]) == ({"1d": 1}, 3)
        (told,) = problems(orders)
        assert problem in told
        assert "retryapp.core.errors.PublishRefusedError" in [o.error_type for o in orders.observer.seen]


async def test_an_error_that_the_handler_catches_leaves_the_rest_as_it_was() -> None:
    """A record that is refused at the call is the handler's to deal with."""

    async def handler(_value: bytes, record: Delivery) -> None:
        record.publish(OUT, b"1")
        with pytest.raises(PublishRefusedError):
            record.publish(OUT, "text")
        record.publish(OUT, b"2")

    async with MemoryPartition(handler) as orders:
        await orders.send(b"order")
        assert results(orders) == [b"1", b"2"]


@pytest.mark.parametrize(("count", "size", "problem"), [(MAX_RECORDS + 1, 1, "records"), (20, 1_000_000, "bytes")])
async def test_one_attempt_publishes_no_more_than_a_transaction_can_carry(count: int, size: int, problem: str) -> None:
    """Else its lane would try for ever."""

    async def handler(_value: bytes, record: Delivery) -> None:
        for _ in range(count):
            record.publish(OUT, bytes(size))

    async with serving(handler, DAY, b"order") as (orders, _):
        limit = MAX_RECORDS if problem == "records" else MAX_BYTES
        assert problems(orders) == [f"publish to {OUT!r}: one attempt publishes at most {limit} {problem}"]


# -- where it goes ----------------------------------------------------------------------------------------------------


async def test_a_key_chooses_its_partition_as_kafkas_own_clients_do() -> None:
    """Unless the handler names one."""

    async def handler(_value: bytes, record: Delivery) -> None:
        for number in range(20):
            record.publish(OUT, b"by key", key=b"%d" % number)
        record.publish(OUT, b"named", key=b"1", partition=2)

    async with MemoryPartition(handler, destinations=MemoryDestinations({OUT: 3})) as orders:
        await orders.send(b"order")
        for number in range(3):
            found = [r.key for r in orders.records(OUT, number) if r.value == b"by key"]
            assert found == [b"%d" % n for n in range(20) if partition_of(b"%d" % n, 3) == number] != []
        assert b"named" in results(orders, 2)


# -- deliveries that no worker has made -------------------------------------------------------------------------------


async def test_a_copy_of_a_delivery_can_go_anywhere_and_publishes_nothing() -> None:
    """To another process, say: what is known of the record is data, the way into its turn is not."""
    seen: list[Delivery] = []

    async def handler(_value: bytes, record: Delivery) -> None:
        seen.extend([pickle.loads(pickle.dumps(record)), copy.deepcopy(record)])  # noqa: S301 - our own bytes
        assert seen == [record, record]
        for other in seen:
            with pytest.raises(PublishRefusedError, match="no worker has made this delivery"):
                other.publish(OUT, b"v")

    async with MemoryPartition(handler) as orders:
        await orders.send(b"order")
        assert (len(seen), results(orders), problems(orders)) == (2, [], [])


async def test_a_handler_that_has_cancelled_its_own_task_has_published() -> None:
    """The look at the topic does not raise that cancellation: the work is done."""
    calls: list[bytes] = []

    async def handle(value: bytes, delivery: Delivery) -> None:
        calls.append(value)
        delivery.publish("out", value)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async with MemoryPartition(handle, "1s") as orders:
        await orders.send(b"a")
        published = [record.value for record in orders.records("out")]
        assert (calls, published, problems(orders)) == ([b"a"], [b"a"], [])

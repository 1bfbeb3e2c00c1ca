"""`MemoryPartition.of`: a declared handler, with all that its declaration says."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import faust
import pytest
from pydantic import BaseModel

from retryapp import Batch, CircuitBreaker, Delivery, Retries, RetryPolicy, retryable
from retryapp.core.errors import ConfigurationError, InvalidSettingError
from retryapp.core.holding import Holding
from retryapp.testing import MemoryPartition, Script

BATCH, BREAKER, FEW = Batch(4), CircuitBreaker(), CircuitBreaker(max_concurrent=2)


class Order(BaseModel):
    """A value."""

    id: int


seen: list[tuple[Order, int]] = []


async def charge(order: Order, delivery: Delivery) -> None:
    seen.append((order, delivery.hot_attempt))
    if delivery.hot_attempt == 1:
        raise ConnectionError
    delivery.publish("receipts", {"id": order.id})


@pytest.fixture
async def retries() -> Retries:
    seen.clear()
    made = Retries(faust.App("shop", broker="kafka://127.0.0.1:1", store="memory://"))
    made.handler(
        "orders",
        value=Order,
        policy=RetryPolicy("5m 1h", hot="50ms"),
        tiers="per-delay",
        concurrency=3,
        max_in_flight=7,
        max_crashes=2,
        deduplicate="header:event-id",
        publishes=["receipts"],
    )(charge)
    return made


async def test_a_declared_handler_has_all_its_settings(retries: Retries) -> None:
    """Type, policy, topics, limits, and what tells duplicates."""
    async with MemoryPartition.of(retries, "orders") as orders:
        (declared,) = retries.handlers
        assert orders.handler == declared
        assert orders.handler.topology.retry_topics == ("shop.orders.retry.5m", "shop.orders.retry.1h")
        await orders.send(b'{"id": 1}', b'{"id": 1}', headers=(("event-id", b"e"),))
        await orders.advance(50)
        assert seen == [(Order(id=1), 1), (Order(id=1), 2)]
        assert [each.value for each in orders.records("receipts")] == [b'{"id":1}']


async def test_another_function_and_other_settings_take_the_place_of_the_declared_ones(retries: Retries) -> None:
    """A script that fails first; the next worker goes on with what the first one has left."""
    script = Script("reject", then=charge)
    async with MemoryPartition.of(retries, "orders", function=script, concurrency=1) as orders:
        await orders.send(b'{"id": 1}')
        assert (orders.handler.concurrency, seen) == (1, [])
        assert [letter.reason for letter in orders.dead_letters] == ["rejected"]
    async with MemoryPartition.of(retries, "orders", transport=orders.transport) as orders:
        assert len(orders.dead_letters) == 1


async def test_topics_of_other_handlers_are_no_destinations(retries: Retries) -> None:
    """As in a worker, where it is refused."""

    async def answer(_value: bytes, delivery: Delivery) -> None:
        delivery.publish("shop.orders.dlq", b"1")

    retries.handler("returns", policy="5m")(answer)
    async with MemoryPartition.of(retries, "returns") as returns:
        await returns.send(b"1")
        await returns.to_rest()
        (letter,) = returns.dead_letters
        assert "this topic is retryapp's own" in letter.error_message


async def test_the_event_loop_follows_real_time_before_and_after(retries: Retries) -> None:
    """It stood still after a partition: nothing slept to its end in the rest of the test, or on a shared loop."""
    loop = asyncio.get_running_loop()
    async with MemoryPartition.of(retries, "orders") as orders:
        async with MemoryPartition.of(retries, "orders", clock=orders.clock, partition=1):
            pass
        await orders.advance(1_000)
        assert loop.time() == orders.clock.monotonic_s()
    assert abs(loop.time() - time.monotonic()) < 60
    await asyncio.sleep(0.001)


@pytest.mark.parametrize("times", [1, 2])
async def test_the_event_loop_follows_virtual_time_until_the_last_partition_has_ended(times: int) -> None:
    """It stood still when one had ended that began first, and no timer came due in the other. An end counts once."""
    loop = asyncio.get_running_loop()
    former = loop.time
    first = MemoryPartition(Script("hang"), RetryPolicy("1s", timeout="5s"))
    last = MemoryPartition(Script("hang"), RetryPolicy("1s", timeout="5s"), clock=first.clock, partition=1)
    await first.__aenter__()
    await last.__aenter__()
    for _ in range(times):
        await first.__aexit__(None, None, None)
    await last.send(b"1")
    await last.advance(5_000)
    assert last.waiting == {"1s": 1}
    for _ in range(times):
        await last.__aexit__(None, None, None)
    assert loop.time == former


async def test_a_handler_that_is_not_declared_is_named(retries: Retries) -> None:
    with pytest.raises(LookupError, match="'refunds' is declared, only of orders"):
        MemoryPartition.of(retries, "refunds")
    with pytest.raises(LookupError, match="'orders' is declared, nor of any other topic"):
        MemoryPartition.of(Retries(faust.App("empty", broker="kafka://127.0.0.1:1")), "orders")


@pytest.mark.parametrize(("name", "given"), [("policy", "1s"), ("policy", RetryPolicy("1s")), ("group", "other")])
async def test_what_is_declared_is_not_given_again(retries: Retries, name: str, given: Any) -> None:
    """A policy was "multiple values" of an argument, and a group was ignored."""
    with pytest.raises(InvalidSettingError, match=f"setting {name}=.*: expected in the declaration; a partition with"):
        MemoryPartition.of(retries, "orders", **{name: given})


@pytest.mark.parametrize("partition", [-1, "0", 1.0, True, None])
def test_a_number_that_is_no_partitions_is_named(partition: Any) -> None:
    """A negative one was taken."""
    with pytest.raises(InvalidSettingError, match=r"setting partition=.*: expected the number of a partition, 0 or"):
        MemoryPartition(charge, partition=partition)


@pytest.mark.parametrize("random", [0.5, lambda: 0.5])
def test_what_gives_no_random_numbers_is_named(random: Any) -> None:
    """Records were dead as `damaged` once their delays were drawn."""
    with pytest.raises(InvalidSettingError, match=r"setting random=.*: expected what has a method random\(\)"):
        MemoryPartition(charge, value=Order, random=random)
    assert MemoryPartition(charge, value=Order, random=Random(7)).handler.name.endswith("charge")


def test_an_app_in_place_of_its_retries_is_named() -> None:
    """It was an AttributeError of ours."""
    with pytest.raises(TypeError, match="expected the Retries that declares the handler, got <App"):
        MemoryPartition.of(faust.App("shop", broker="kafka://127.0.0.1:1"), "orders")  # type: ignore[arg-type]


async def test_a_script_gets_what_the_declared_function_would(retries: Retries) -> None:
    """Names in the value type are those of the declared function's module, whatever takes its place."""
    script = Script()
    retries.handler("lists", value=list["Order"], policy="5m")(charge)
    async with MemoryPartition.of(retries, "lists", function=script) as lists:
        await lists.send(b'[{"id": 1}]')
        assert [call.value for call in script.calls] == [[Order(id=1)]]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"batch": 5}, r"batch=5: expected a Batch\(\.\.\.\), or None"),
        ({"circuit": True}, "circuit=True: expected a CircuitBreaker"),
        ({"circuits": ["ledger"]}, "circuits=.*expected a CircuitBreaker"),
        ({"order": "keys"}, "order='keys': expected one of none, key, latest, partition"),
        ({"concurrency": "4"}, "concurrency='4': expected a whole number"),
        ({"rate_limit": 50}, "rate_limit=50: expected a whole number for each second"),
        ({"order": "key", "on_dead": "stop"}, "on_dead='stop': expected one of release, hold"),
        ({"payload": "link"}, "payload='link': expected one of copy, reference"),
        ({"max_in_flight": 1, "concurrency": 5}, "max_in_flight=1: expected at least concurrency=5"),
        ({"tiers": "many"}, "tiers='many': expected one of single, per-delay"),
        ({"publishes": "receipts"}, "publishes='receipts': expected a list of topics"),
        ({"dead_letters": "keep"}, "dead_letters='keep': expected one of topic, drop"),
        ({"policy": 300}, "policy=300: expected a RetryPolicy or its text"),
        ({"policy": RetryPolicy("1s", hot="5ms"), "batch": BATCH}, "batch=.*cannot be combined with hot="),
        ({"order": "partition", "batch": BATCH}, "batch=.*cannot be combined with order='partition'"),
        ({"max_in_flight": 3, "batch": BATCH}, "batch=.*a size of at most max_in_flight=3"),
        ({"order": "partition", "circuit": BREAKER}, "circuit=.*cannot be combined with order='partition'"),
        ({"order": "partition", "circuits": {"bank": BREAKER}}, "circuits=.*cannot be combined with order='partition'"),
        ({"circuit": CircuitBreaker(rate_limit="1/s")}, "set rate_limit= of the handler"),
        ({"circuit": FEW}, "for all retries set max_concurrent= of the handler"),
        ({"circuits": {"no name": BREAKER}}, "letters, digits"),
        ({"circuits": {f"c{n}": BREAKER for n in range(17)}}, "at most 16"),
        ({"circuits": {"c7": BREAKER, "c10": BREAKER}}, "another name"),
        ({"policy": RetryPolicy("1s", on=[retryable(ValueError, circuit="bank")])}, "names the circuit 'bank'"),
        ({"redelivery": "main", "order": "key"}, "redelivery='main': it cannot be combined with order="),
        ({"redelivery": "main", "order": "partition"}, "redelivery='main': it cannot be combined with order="),
        ({"redelivery": "main", "payload": "reference"}, "redelivery='main'.*or with payload='reference'"),
        ({"redelivery": "main", "circuits": {"ledger": FEW}}, "redelivery='main' they have no max_concurrent"),
        ({"payload": "reference", "order": "latest"}, "payload=.*cannot be combined with order='latest'"),
        ({"payload": "reference", "order": "key", "policy": "forever(10s)"}, "payload=.*it needs max_elapsed="),
        ({"on_dead": "hold"}, "on_dead=.*needs order='key' or order='partition'"),
        ({"on_dead": "hold", "order": "latest"}, "on_dead=.*needs order='key' or order='partition'"),
        ({"on_dead": "hold", "order": "key", "dead_letters": "drop"}, "on_dead=.*with dead_letters='drop'"),
        ({"max_sequence_size": 9}, "max_sequence_size=9: it needs order='key'"),
        ({"max_sequence_size": 9, "order": "latest"}, "max_sequence_size=9: it needs order='key'"),
        ({"max_sequence_size": 9, "order": "partition"}, "max_sequence_size=9: it needs order='key'"),
    ],
)
def test_what_a_declaration_refuses_is_refused_in_the_same_words(wrong: dict[str, Any], problem: str) -> None:
    """By the argument's name: one that is none, and those that make no sense together."""
    retries = Retries(faust.App("shop", broker="kafka://127.0.0.1:1", store="memory://"))
    with pytest.raises(ConfigurationError, match=problem) as refused:
        MemoryPartition(charge, **wrong)
    with pytest.raises(ConfigurationError) as declared:
        retries.handler("orders", **{"policy": "5m", **wrong})(charge)
    assert str(refused.value) == str(declared.value)


async def test_a_partition_takes_the_arguments_of_a_declaration() -> None:
    """Some were known by the names of fields only."""
    more: dict[str, Any] = {"order": "key", "on_dead": "hold", "max_sequence_size": 3, "rate_limit": "50/s"}
    orders = MemoryPartition(charge, "5m", value=Order, payload="reference", **more)
    assert orders.handler.by_reference
    assert orders.handler.holding == Holding(on_dead="hold", max_sequence_size=3)


async def test_a_partition_takes_what_is_declared_of_topics(retries: Retries) -> None:
    """Without a declaration; one has said it already."""
    more: dict[str, Any] = {"tiers": "per-delay", "publishes": ["receipts"], "dead_letters": "drop"}
    async with MemoryPartition(Script(ValueError, "reject"), "5m 1h", **more) as orders:
        assert orders.handler.topology.publishes == ("receipts",)
        await orders.send(b"1")
        assert len(orders.records("app.orders.retry.5m")) == 1
        await orders.to_rest()
        assert (orders.waiting, orders.dead_letters) == ({}, [])
        assert "app.orders.dlq" not in {topic for topic, _ in orders.transport.broker.logs}
    with pytest.raises(InvalidSettingError, match="dead_letters='drop': expected in the declaration"):
        MemoryPartition.of(retries, "orders", dead_letters="drop")


async def test_a_command_that_is_none_names_those_that_are() -> None:
    """Before anything is sent."""

    async def handle(_value: bytes) -> None:
        """Do nothing."""

    async with MemoryPartition(handle, "1s") as orders:
        with pytest.raises(InvalidSettingError, match="expected one of retry-now, "):
            await orders.command("retry", 0)


@pytest.mark.parametrize(
    ("verb", "given", "problem"),
    [
        ("hold", {"hold_for": "1h"}, "setting hold_for=.*expected only .*hold_ms"),
        ("reschedule", {}, "due_at_ms belongs to reschedule"),
        ("cancel", {"by": 5}, "by: .*valid string"),
    ],
)
async def test_a_command_does_not_ignore_what_it_does_not_take(verb: str, given: dict[str, Any], problem: str) -> None:
    """A record was held for 7 days in place of an hour, as the length of `Retries.command` has another name here."""
    async with MemoryPartition(Script("fail"), "1m") as orders:
        await orders.send(b"1")
        with pytest.raises(InvalidSettingError, match=problem) as refused:
            await orders.command(verb, 0, **given)
        assert "pydantic" not in str(refused.value)
        assert orders.waiting == {"1m": 1}

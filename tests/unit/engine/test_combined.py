"""Settings that meet in one handler: order, rate, circuit, hot tries, lists, rules."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import BankDownError, Gate, pass_time, serving
from test_pace import state

from retryapp.core.batch import Batch
from retryapp.core.circuit import CircuitBreaker, CircuitState
from retryapp.core.headers import decode_metadata
from retryapp.core.policy import RetryPolicy
from retryapp.core.rates import parse_rate
from retryapp.core.rules import retryable
from retryapp.core.verdicts import Skip
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.testing import MemoryPartition, MemoryPendingTable, Script

BREAKER = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="4s", max_open="10m")


class Service:
    """What a handler calls, one record or many: down with this error, or not."""

    def __init__(self, down: BaseException | None = None) -> None:
        self.down = down
        self.seen: list[tuple[bytes, int, int]] = []
        self.done: list[bytes] = []

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        self.seen.append((value, delivery.attempt, delivery.hot_attempt))
        if self.down is not None:
            raise self.down
        self.done.append(value)

    async def all(self, values: list[bytes], deliveries: list[Delivery]) -> None:
        for value, delivery in zip(values, deliveries, strict=True):
            try:
                await self(value, delivery)
            except Exception as error:  # noqa: BLE001 - told below
                delivery.fail(error)


async def test_records_that_were_held_are_first_deliveries_and_no_rate_holds_them_back() -> None:
    """Only what has failed is a retry."""
    async with serving(Gate(), "1s", order=Order.KEY, rate_limit=parse_rate("1/m")) as (orders, gate):
        await orders.send(*(b"%d" % number for number in range(6)), key=b"a")
        await gate.end(orders, b"0", BankDownError())
        await pass_time(orders, 59_000, 100)
        assert gate.started == [b"0"]
        await pass_time(orders, 1_100, 100)
        assert gate.started == [b"0", b"0"]
        gate.let_all()
        await orders.settle()
        assert gate.done == [b"%d" % number for number in range(6)]


async def test_rows_that_are_put_aside_take_nothing_of_the_rate() -> None:
    """They were due before their handler had an order, and are behind one that waits."""
    async with serving(Gate(), "1s 1h", concurrency=9) as (orders, gate):
        for value, key in ((b"1", b"a"), (b"2", b"a"), (b"3", b"a"), (b"4", b"b")):
            await orders.send(value, key=key)
            await gate.end(orders, value, BankDownError())
    gate = Gate()
    options = {"order": Order.KEY, "rate_limit": parse_rate("1/s"), "concurrency": 9, "transport": orders.transport}
    async with MemoryPartition(gate, "1s 1h", **options) as orders:
        await orders.advance(1_000)
        assert gate.started == [b"1"]
        await orders.advance(1_000)
        assert gate.started == [b"1", b"4"]


async def test_a_look_costs_the_same_however_many_rows_are_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compared all of them: their number, squared, until the last one was found, and then in each later look."""
    count, look, compared = 600, MemoryPendingTable.due, list[int]()

    def due(table: MemoryPendingTable, now_ms: int, limit: int, claimed: Any = (), **more: Any) -> Any:
        compared.append(len(claimed))
        return look(table, now_ms, limit, claimed, **more)

    async with serving(Script("fail"), "1s", *[b"a"] * count, key=b"k", max_in_flight=count) as (orders, _):
        await orders.advance(500)
        assert orders.waiting == {"1s": count}
    seen: list[int] = []

    async def handle(_value: bytes, delivery: Delivery) -> None:
        seen.append(delivery.origin.offset)

    monkeypatch.setattr(MemoryPendingTable, "due", due)
    async with MemoryPartition(handle, "1s", order=Order.KEY, transport=orders.transport) as orders:
        await orders.to_rest()
    assert seen == [*range(count)]
    assert max(compared) <= 3, "what is claimed, of one key"


async def test_an_outage_keeps_order_and_attempts() -> None:
    """Heads probe, the others wait behind them, and all run in order when it is over."""
    service = Service(BankDownError())
    names = [b"%s%d" % (key, number) for number in range(3) for key in (b"a", b"b", b"c", b"d", b"e")]
    async with MemoryPartition(service, "1s", circuit=BREAKER, order=Order.KEY, concurrency=4) as orders:
        for name in names:
            await orders.send(name, key=name[:1])
        await pass_time(orders, 60_000, 100)
        assert state(orders) is not CircuitState.CLOSED
        assert orders.dead_letters == []
        service.down = None
        await pass_time(orders, 60_000, 100)
        assert sorted(service.done, key=lambda name: name[:1]) == sorted(names, key=lambda name: name[:1])
        assert (state(orders), orders.waiting) == (CircuitState.CLOSED, {})


async def test_a_run_that_takes_too_long_is_a_time_out_for_rules() -> None:
    """As one that a client of the handler raises."""
    policy = RetryPolicy("1h", on=[retryable(TimeoutError, schedule="1s")], timeout="2s")
    async with serving(Gate(), policy, b"a") as (orders, _):
        await orders.advance(2_000)
        assert orders.waiting == {"1s": 1}


async def test_a_failure_that_is_free_is_none_under_a_rule() -> None:
    """The rule's schedule goes on where it was before the outage."""
    service = Service(TimeoutError())
    policy = RetryPolicy("1s", on=retryable(TimeoutError, schedule="1s 20s"), timeout="1s")
    async with MemoryPartition(service, policy, circuit=BREAKER, concurrency=4) as orders:
        await orders.send(*(b"%d" % number for number in range(4)))
        assert state(orders) is CircuitState.OPEN
        await pass_time(orders, 30_000, 100)
        failed = [decode_metadata(record.headers) for record in orders.records("app.orders.retry")]
        free = [each for each in failed if each is not None and each.delivery > each.attempt]
        assert free
        assert all(each.attempt <= 1 for each in free)
        again = [each.rule_failures if each.rule_failures >= 0 else each.attempt for each in free]
        assert max(again) <= 1, "no failure of the outage counts"
        assert {each.rule for each in free if each.attempt} == {policy.on[0].name}


@pytest.mark.parametrize("lists", [False, True])
async def test_what_is_skipped_says_nothing_of_the_service(lists: bool) -> None:
    """A circuit stays closed however many records are skipped, also in lists."""
    service = Service(Skip("nothing to do"))
    batch = Batch(10, "10ms") if lists else None
    handler = service.all if lists else service
    async with MemoryPartition(handler, "1s", circuit=BREAKER, batch=batch) as orders:
        await orders.send(*(b"%d" % number for number in range(30)))
        await pass_time(orders, 1_000, 100)
        assert (state(orders), orders.waiting, orders.dead_letters) == (CircuitState.CLOSED, {}, [])


async def test_in_an_outage_nothing_is_tried_again_in_place() -> None:
    """A probe is one call."""
    service = Service(BankDownError())
    policy = RetryPolicy("1s", hot="10ms*2", timeout="5s")
    async with MemoryPartition(service, policy, circuit=BREAKER, concurrency=4) as orders:
        await orders.send(*(b"%d" % number for number in range(4)))
        await pass_time(orders, 500, 100)
        assert state(orders) is CircuitState.OPEN
        service.seen.clear()
        await pass_time(orders, 30_000, 100)
        assert service.seen
        assert {tries for _, _, tries in service.seen} == {1}


async def test_lists_probe_and_are_all_done_after_an_outage() -> None:
    """A record that the circuit lets go later gathers in another list."""
    service = Service(BankDownError())
    names = [b"%02d" % number for number in range(30)]
    async with serving(service.all, "1s", *names, circuit=BREAKER, batch=Batch(4, "20ms")) as (orders, _):
        await pass_time(orders, 20_000, 100)
        assert state(orders) is not CircuitState.CLOSED
        service.down = None
        await pass_time(orders, 60_000, 100)
        assert (sorted(service.done), orders.dead_letters, orders.waiting) == (names, [], {})
        await asyncio.sleep(0)


async def test_rows_that_were_put_aside_keep_to_the_rate_when_their_turn_comes() -> None:
    """They are retries, one behind the other."""
    async with serving(Gate(), "1s 1h", concurrency=9) as (orders, gate):
        for value in (b"1", b"2", b"3"):
            await orders.send(value, key=b"a")
            await gate.end(orders, value, BankDownError())
    gate = Gate()
    options = {"order": Order.KEY, "rate_limit": parse_rate("1/s"), "transport": orders.transport}
    async with MemoryPartition(gate, "1s 1h", **options) as orders:
        await pass_time(orders, 5_500, 100)
        assert gate.started == [b"1"]
        gate.let_all()
        await orders.settle()
        done = [len(gate.done)]
        for _ in range(2):
            await pass_time(orders, 1_000, 100)
            done.append(len(gate.done))
        assert done in ([1, 2, 3], [2, 3, 3])

"""A rate and a number of places hold retries back; nothing is lost, or early."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import BankDownError, Gate, pass_time, serving
from test_pace import Service

from retryapp import Unavailable
from retryapp.core.batch import Batch
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.rates import parse_rate
from retryapp.engine.handler.handler import Delivery
from retryapp.testing import MemoryPartition, Script


async def test_no_second_has_more_retries_than_the_rate() -> None:
    """A burst that comes due at once goes one by one, in due order; first deliveries are not limited."""
    service = Service(BankDownError())
    async with MemoryPartition(service, "1s", concurrency=8, rate_limit=parse_rate("10/s")) as orders:
        await orders.send(*(b"%02d" % n for n in range(30)))
        service.down = None
        assert len(service.calls) == 30
        await pass_time(orders, 4_500, 5)
        assert service.done == [b"%02d" % n for n in range(30)]
        times = [at for at, _, attempt in service.calls if attempt == 2]
        most = max(sum(at <= each < at + 1 for each in times) for at in times)
        assert most <= 11
        assert times[-1] - times[0] < 3.2, "nor is it much slower"


async def test_a_session_begins_with_an_empty_bucket_and_keeps_it() -> None:
    """What is due when a worker starts does not come in a burst."""
    service = Service(BankDownError())
    rate = parse_rate("60/m")
    async with MemoryPartition(service, "1s", rate_limit=rate) as orders:
        await orders.send(b"a", b"b", b"c")
    service.down, service.calls = None, []
    orders.clock.advance(60_000)
    async with MemoryPartition(service, "1s", rate_limit=rate, transport=orders.transport) as orders:
        assert service.done == []
        await orders.advance(999)
        assert (service.done, orders.engine.context.pace.holds_due) == ([], "rate")
        await orders.advance(1)
        assert service.done == [b"a"]
        await pass_time(orders, 2_000)
        assert service.done == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "options",
    [
        {"rate_limit": parse_rate("10/s")},
        {"circuits": {"ledger": CircuitBreaker(minimum_calls=1_000, rate_limit="10/s")}},
    ],
    ids=lambda options: "".join(options),
)
async def test_claims_that_no_runner_begins_are_no_store(options: dict[str, Any]) -> None:
    """While runners are busy the rate goes by; when they are free again there is no burst."""
    async with serving(Gate(), "1s", concurrency=1, **options) as (orders, gate):
        for n in range(30):
            await orders.send(b"%02d" % n)
            await gate.end(orders, b"%02d" % n, Unavailable("ledger"))
        gate.started.clear()
        await pass_time(orders, 5_000)
        assert gate.started == [b"00"]
        gate.let_all()
        await orders.settle()
        assert len(gate.started) <= 3
        await pass_time(orders, 1_000)
        assert 6 <= len(gate.started) <= 13
        await orders.to_rest()


async def test_what_gathers_in_a_list_leaves_the_rate_to_others() -> None:
    """It waits for no runner, but for the others."""
    lists: list[int] = []

    async def handle(values: list[bytes], deliveries: list[Delivery]) -> None:
        lists.append(len(values))
        if deliveries[0].attempt == 1:
            raise BankDownError

    options: Any = {"rate_limit": parse_rate("10/s"), "batch": Batch(100, "1s")}
    async with serving(handle, "5s", *[b"a"] * 30, **options) as (orders, _):
        await orders.advance(1_000)
        await orders.advance(4_900)
        lists.clear()
        await pass_time(orders, 4_400, 50)
        assert sum(lists) == 30
        assert len(lists) <= 4


async def test_what_waits_for_its_copy_leaves_the_rate_to_others() -> None:
    """The rate acts before the copy is published, however long the main topic takes to be read."""
    options: Any = {"rate_limit": parse_rate("10/s"), "through_main": True}
    async with serving(Script("fail"), "1s", *[b"a"] * 30, **options) as (orders, script):
        orders.engine.room = lambda _: 0  # type: ignore[method-assign]
        await pass_time(orders, 2_050, 50)
        assert 10 <= len(orders.records("orders")) - 30 <= 12
        del orders.engine.room
        await orders.to_rest()
        assert len(script.calls) == 60


async def test_no_more_retries_run_at_once_than_allowed() -> None:
    """First deliveries have the handler's own concurrency."""
    async with serving(Gate(), "1s", *(b"%d" % n for n in range(6)), concurrency=6, max_concurrent=2) as (orders, gate):
        assert gate.most == 6
        for n in range(6):
            gate.let(b"%d" % n, BankDownError())
        await orders.settle()
        gate.most = 0
        await orders.advance(1_000)
        assert len(gate.running) == 2

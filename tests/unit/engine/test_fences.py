"""A delivery has a number that rises with each opening of its partition: a service can refuse who had it before."""

from __future__ import annotations

import pytest
from doubles import CHANGELOG, MAIN, BankDownError, fine, reopen

from retryapp.core.batch import Batch
from retryapp.engine.handler.handler import Delivery
from retryapp.testing import MemoryPartition, Step


class Service:
    """Notes the fences that it is called with; down or not."""

    def __init__(self) -> None:
        self.fences: list[int] = []
        self.down = False

    async def __call__(self, _value: bytes, delivery: Delivery) -> None:
        self.fences.append(delivery.fence)
        if self.down:
            raise BankDownError


async def test_each_opening_has_a_greater_one_also_where_there_was_nothing_to_do() -> None:
    """For the next worker, for a lane that opens again here, and after an owner that has written nothing but that."""
    service = Service()
    orders = MemoryPartition(service)
    async with orders:
        await orders.send(b"a", b"b")
        await orders.advance(1_000)
        await reopen(orders)
        await orders.send(b"c")
    first, second, third = service.fences
    assert 0 <= first == second < third
    for _ in range(3):  # nothing is unread, and nothing waits
        async with MemoryPartition(service, transport=orders.transport):
            pass
    async with MemoryPartition(service, transport=orders.transport) as orders:
        await orders.send(b"d")
    assert service.fences[-1] > third + 3


async def test_a_lane_that_opens_again_and_again_without_a_commit_has_a_greater_one_each_time() -> None:
    """The end of the changelog is the same then."""
    service = Service()
    async with MemoryPartition(service) as orders:
        await orders.send(b"a")
        for session in (2, 3, 4):
            orders.lane.fail(RuntimeError("before its offset is committed"))
            while orders.lane.session < session:
                await orders.advance(50)
    assert len(service.fences) == 4
    assert service.fences == sorted({*service.fences})


@pytest.mark.parametrize("lost", ["its store", "its mark", "the answer to its mark"])
async def test_a_row_has_that_of_who_delivers_it(lost: str) -> None:
    """Not that of its first delivery; also where the store is rebuilt, or its commit fails or has no answer."""
    service = Service()
    service.down = True
    async with MemoryPartition(service, "1s 1s") as orders:
        await orders.send(b"a")
    if lost == "its store":
        orders.transport.disk.drop("app.orders.0")
    else:
        orders.transport.fail(Step.COMMIT, ConnectionError("gone"), durable=lost != "its mark")
    async with MemoryPartition(service, "1s 1s", transport=orders.transport) as orders:
        await orders.advance(5_000)
        service.down = False
        await orders.to_rest()
    assert service.fences[0] < min(service.fences[1:])
    assert len({*service.fences}) == 2


async def test_who_is_stopped_in_a_call_has_a_smaller_one_than_its_successor() -> None:
    """Its record is delivered again: a service that has seen the second call refuses what is left of the first."""
    calls: list[Delivery] = []

    async def handler(_value: bytes, delivery: Delivery) -> None:
        calls.append(delivery)

    async with MemoryPartition(handler) as orders:
        await orders.send(b"a")
    async with MemoryPartition(handler, transport=orders.transport):
        pass
    zombie, successor = calls
    assert zombie.origin == successor.origin
    assert zombie.fence < successor.fence


async def test_who_takes_no_delivery_pays_nothing() -> None:
    """An opening writes no record for that; each record of a list has the number, too."""
    async with MemoryPartition(fine) as orders:
        assert orders.transport.read(CHANGELOG) == []
    fences: list[int] = []

    async def batch(_values: list[bytes], records: list[Delivery]) -> None:
        fences.extend(record.fence for record in records)

    async with MemoryPartition(batch, batch=Batch(10, "10ms")) as orders:
        (mark,) = orders.transport.read(CHANGELOG)
        await orders.send(b"a", b"b")
        await orders.advance(10)
        assert fences == [mark.offset] * 2
        assert orders.transport.offsets[MAIN] == 0

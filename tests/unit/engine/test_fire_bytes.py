"""Firing large rows: turns and what waits for the lane are bounded in bytes, not only in rows."""

from __future__ import annotations

import pytest

from retryapp.engine import firing as engine_firing
from retryapp.engine.lane import LaneLimits
from retryapp.testing import MemoryPartition, Step

REDELIVERY = "app.orders.redelivery"
ROW_BYTES = 10_000


async def down(_value: bytes) -> None:
    """Fail."""
    raise RuntimeError("down")


def fired(orders: MemoryPartition) -> list[int]:
    """Return how many redeliveries each transaction held."""
    counts = [sum(out.topic == REDELIVERY for out in batch.publishes) for batch in orders.transport.batches]
    return [count for count in counts if count]


async def test_a_firing_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows become several turns; one that is larger than the bound goes alone."""
    monkeypatch.setattr(engine_firing, "FIRE_BYTES", 3 * ROW_BYTES)
    async with MemoryPartition(down, "1s 1h", limits=LaneLimits(turns=1)) as orders:
        await orders.send(*(b"%d" % n + bytes(ROW_BYTES) for n in range(5)), bytes(10 * ROW_BYTES))
        await orders.advance(1_000)
        assert fired(orders) == [2, 2, 1, 1]
        assert len(orders.records(REDELIVERY)) == 6


async def test_firings_that_wait_for_the_lane_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of large rows stays in the table while a transaction takes its time, and goes on after it."""
    monkeypatch.setattr(engine_firing, "FIRE_BYTES", 2 * ROW_BYTES)
    monkeypatch.setattr(engine_firing, "FIRE_QUEUED_BYTES", 3 * ROW_BYTES)
    async with MemoryPartition(down, "1s 1h") as orders:
        await orders.send(*(b"%d" % n + bytes(ROW_BYTES) for n in range(9)))
        gate = orders.transport.pause(Step.COMMIT)
        await orders.advance(1_000)
        for _ in range(5):
            orders.engine.firing.wake.set()
            await orders.advance(10)
        assert len(orders.engine.firing.claimed) == 3
        gate.set()
        await orders.settle()
        await orders.advance(100)
        assert len(orders.records(REDELIVERY)) == 9
        assert (orders.engine.firing.claimed, orders.engine.firing.claimed_bytes) == (set(), 0)


async def test_a_firing_that_was_dropped_gives_its_bytes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each fault of the lane would leave less room, in the end none."""
    monkeypatch.setattr(engine_firing, "FIRE_QUEUED_BYTES", ROW_BYTES)
    async with MemoryPartition(down, "1s 1h") as orders:
        await orders.send(b"a" + bytes(ROW_BYTES))
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"), times=2)
        for _ in range(5):
            await orders.advance(1_000)
        assert len(orders.records(REDELIVERY)) == 1
        assert orders.engine.firing.claimed_bytes == 0

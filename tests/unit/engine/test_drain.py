"""How long a partition may take to end."""

from __future__ import annotations

import asyncio

import pytest

from retryapp.testing import MemoryPartition


@pytest.mark.parametrize(("grace_s", "more_s"), [(25.0, 2.0), (1.0, 1.0)])
async def test_a_drain_takes_its_grace_once_and_little_more(grace_s: float, more_s: float) -> None:
    """A handler that ignores its cancellation does not double the time that a stop takes."""
    released = asyncio.Event()

    async def stubborn(_value: bytes) -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with MemoryPartition(stubborn, "5m") as orders:
        await orders.send(b"a")
        draining = asyncio.create_task(orders.engine.drain(grace_s))
        await orders.settle()
        await orders.advance(round(grace_s * 1000))
        assert not draining.done(), "given up, and waited for"
        await orders.advance(round(more_s * 1000))
        assert draining.done()
        released.set()

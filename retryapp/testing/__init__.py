"""Doubles of everything that the engine needs from the world: handlers run in memory and virtual time, nothing waits.

They carry out the same contracts as the real ones (``tests/contract`` proves it) and drive the engine's own code::

    @retries.handler("orders", policy=RetryPolicy("5m 1h"))
    async def charge(order: bytes) -> None:
        raise TimeoutError("the bank does not answer")

    async with MemoryPartition.of(retries, "orders") as orders:
        await orders.send(b"order 1")
        await orders.advance(5 * 60_000)
        await orders.advance(60 * 60_000)
        assert orders.dead_letters[0].reason == "exhausted"
"""

from __future__ import annotations

from retryapp.testing.clock import ScriptedRandom, VirtualClock
from retryapp.testing.destinations import MemoryDestinations
from retryapp.testing.lane import MemoryLaneTransport, Pause, Step
from retryapp.testing.observer import RecordingObserver
from retryapp.testing.partition import MemoryPartition
from retryapp.testing.script import Script, Seen
from retryapp.testing.tables import MemoryDeadLetterTable, MemoryPendingTable

__all__ = [
    "MemoryDeadLetterTable",
    "MemoryDestinations",
    "MemoryLaneTransport",
    "MemoryPartition",
    "MemoryPendingTable",
    "Pause",
    "RecordingObserver",
    "Script",
    "ScriptedRandom",
    "Seen",
    "Step",
    "VirtualClock",
]

"""The firing task: when it sleeps, and what its faults come to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from retryapp.engine.firing import MAX_SLEEP_S, fire
from retryapp.engine.handler import Delivery
from retryapp.engine.turn import Turn
from retryapp.ports import Event
from retryapp.testing import MemoryPartition


async def test_a_row_that_becomes_due_while_the_table_is_scanned_fires_at_once() -> None:
    """Time that passes between the scan and the sleep must not be taken for a lack of room (it slept for a minute)."""
    attempts: list[int] = []

    async def fail_once(_value: bytes, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise RuntimeError("busy")

    async with MemoryPartition(fail_once, "1s") as partition:
        await partition.send(b"x")
        table: Any = partition.transport.pending
        scan = table.due

        def slow_scan(
            now_ms: int, limit: int, claimed: Collection[bytes] = (), *, max_bytes: int | None = None
        ) -> tuple[list[Any], int | None]:
            found, next_due_ms = scan(now_ms, limit, claimed, max_bytes=max_bytes)
            if next_due_ms is not None and 0 < next_due_ms - now_ms <= 100:
                partition.clock.jump_wall(next_due_ms - now_ms)  # the clock moves on while the scan takes its time
            return found, next_due_ms

        table.due = slow_scan
        await partition.advance(950)
        partition.engine.firing.wake.set()
        await partition.settle()
        assert attempts == [1, 2]


async def test_a_fault_while_firing_makes_the_lane_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The firing task is the only one that looks at the table: dead in silence, nothing would ever fire again."""
    attempts: list[int] = []

    async def fail_once(_value: bytes, delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise RuntimeError("busy")

    faults = [ValueError("what nobody thought of")]

    def faulty(*arguments: Any, **more: Any) -> Turn:
        if faults:
            raise faults.pop()
        return fire(*arguments, **more)

    monkeypatch.setattr("retryapp.engine.firing.fire", faulty)
    async with MemoryPartition(fail_once, "1s") as partition:
        await partition.send(b"x")
        await partition.advance(1_000)
        (failed,) = partition.observer.of(Event.LANE_FAILED)
        assert (failed.error_type, failed.message) == ("ValueError", "what nobody thought of")
        assert partition.lane.session == 1
        assert attempts == [1]
        await partition.advance(100)  # the lane's pause before it opens again
        assert partition.lane.session == 2
        assert attempts == [1, 2]
        assert not partition.waiting


async def test_a_fault_of_an_ended_session_leaves_the_next_one_alone() -> None:
    """What a closing table says to the old firing task is no fault of the new session."""

    async def fail(_value: bytes) -> None:
        raise RuntimeError("busy")

    async with MemoryPartition(fail, "1s") as partition:
        session = partition.lane.session

        async def late() -> None:
            partition.engine._session = session + 1
            raise ValueError("the store is closed")

        await partition.engine._guard(session, late)
        await partition.settle()
        assert partition.observer.of(Event.LANE_FAILED) == []


async def test_when_the_scheduler_last_looked_is_known_and_stands_still_while_the_clock_is_doubted() -> None:
    """Whoever watches must see that nothing fires, whatever the reason."""
    async with MemoryPartition(_fine) as partition:
        assert partition.engine.looked_ms == partition.clock.wall_ms()
        await partition.advance(120_000)
        assert partition.clock.wall_ms() - (partition.engine.looked_ms or 0) <= MAX_SLEEP_S * 1_000
        partition.clock.trusted = False
        seen = partition.engine.looked_ms
        await partition.advance(600_000)
        assert partition.engine.looked_ms == seen
    assert partition.engine.looked_ms is None


async def _fine(_value: bytes) -> None:
    """Take the record."""

"""The firing task's sleep."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retryapp.engine.handler import Delivery
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
        partition.engine._fire_wake.set()
        await partition.settle()
        assert attempts == [1, 2]

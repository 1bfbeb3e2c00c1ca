"""Due rows fire once, never early, in bounds of rows and bytes, and are not forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import REDELIVERY, BankDownError, Gate, down, fine, make_context, offsets

from retryapp.core.rows import row_key
from retryapp.engine.lane.lane import LaneLimits
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import firing as engine_firing
from retryapp.engine.partition.firing import MAX_SLEEP_S, fire
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, Script, Step


async def test_firing_stays_a_bounded_number_of_records_ahead_of_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood waits in the table, in due order, not on the topic."""
    monkeypatch.setattr(engine_firing, "FIRE_AHEAD", 5)
    monkeypatch.setattr(engine_firing, "FIRE_LIMIT", 3)
    gate = Gate()
    async with MemoryPartition(gate, "1s", concurrency=2) as orders:
        for n in range(12):
            await orders.send(b"%02d" % n)
            gate.let(b"%02d" % n, BankDownError())
            await orders.settle()
        await orders.advance(10_000)
        assert (len(orders.records(REDELIVERY.topic)), sum(orders.waiting.values())) == (5, 7)
        await orders.advance(60_000)
        assert len(orders.records(REDELIVERY.topic)) == 5
        gate.let(b"00")
        await orders.settle()
        assert (len(orders.records(REDELIVERY.topic)), orders.engine.firing.ahead) == (6, 5)
        while gate.running:
            gate.let(next(iter(gate.running)))
            await orders.settle()
        assert offsets(orders.records(REDELIVERY.topic)) == list(range(12))
        assert (orders.waiting, orders.engine.firing.ahead) == ({}, 0)


async def test_a_row_that_is_not_due_is_refused_whoever_asks() -> None:
    """The table gives out what is due; if it ever gave out more, nothing of it may come early."""
    context = make_context(down)
    rows = [(row_key(due_at_ms, 0, due_at_ms), b"") for due_at_ms in (1_000, 1_001)]
    with pytest.raises(ValueError, match="row due at 1001 ms would fire at 1000 ms"):
        fire(context, rows, partition=0, now_ms=1_000)


ROW_BYTES = 10_000


def fired(orders: MemoryPartition) -> list[int]:
    """Return how many redeliveries each transaction held."""
    counts = [sum(out.topic == REDELIVERY.topic for out in batch.publishes) for batch in orders.transport.batches]
    return [count for count in counts if count]


async def test_a_firing_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows become several turns; one that is larger than the bound goes alone."""
    monkeypatch.setattr(engine_firing, "FIRE_BYTES", 3 * ROW_BYTES)
    async with MemoryPartition(down, "1s 1h", limits=LaneLimits(turns=1)) as orders:
        await orders.send(*(b"%d" % n + bytes(ROW_BYTES) for n in range(5)), bytes(10 * ROW_BYTES))
        await orders.advance(1_000)
        assert fired(orders) == [2, 2, 1, 1]
        assert len(orders.records(REDELIVERY.topic)) == 6


async def test_rows_that_become_due_while_the_lane_is_busy_fire_in_one_turn() -> None:
    """They could not go before; one look at the table serves all, and the lane takes them along when it goes on."""
    async with MemoryPartition(down, "1s 1h") as orders:
        await orders.send(b"a")
        for n in range(3):
            await orders.advance(10)
            await orders.send(b"%d" % n)
        gate = orders.transport.pause(Step.COMMIT)
        await orders.advance(970)
        for _ in range(3):
            await orders.advance(10)
        assert len(orders.engine.firing.claimed) == 1
        gate.set()
        await orders.settle()
        assert len(orders.records(REDELIVERY.topic)) == 1
        await orders.advance(30)
        assert fired(orders) == [1, 3]


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
        assert len(orders.records(REDELIVERY.topic)) == 9
        assert (orders.engine.firing.claimed, orders.engine.firing.claimed_bytes) == (set(), 0)


async def test_a_firing_that_was_dropped_gives_its_bytes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each fault of the lane would leave less room, in the end none."""
    monkeypatch.setattr(engine_firing, "FIRE_QUEUED_BYTES", ROW_BYTES)
    async with MemoryPartition(down, "1s 1h") as orders:
        await orders.send(b"a" + bytes(ROW_BYTES))
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"), times=2)
        for _ in range(5):
            await orders.advance(1_000)
        assert len(orders.records(REDELIVERY.topic)) == 1
        assert orders.engine.firing.claimed_bytes == 0


async def test_a_row_that_becomes_due_while_the_table_is_scanned_fires_at_once() -> None:
    """Time that passes between the scan and the sleep must not be taken for a lack of room (it slept for a minute)."""
    script = Script("fail")
    async with MemoryPartition(script, "1s") as partition:
        await partition.send(b"x")
        table: Any = partition.transport.pending
        scan = table.due

        def slow_scan(now_ms: int, *arguments: Any, **more: Any) -> tuple[list[Any], int | None]:
            found, next_due_ms = scan(now_ms, *arguments, **more)
            if next_due_ms is not None and 0 < next_due_ms - now_ms <= 100:
                partition.clock.jump_wall(next_due_ms - now_ms)  # the clock moves on while the scan takes its time
            return found, next_due_ms

        table.due = slow_scan
        await partition.advance(950)
        partition.engine.firing.wake.set()
        await partition.settle()
        assert len(script.calls) == 2


async def test_a_fault_while_firing_makes_the_lane_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The firing task is the only one that looks at the table: dead in silence, nothing would ever fire again."""
    script = Script("fail")
    faults = [ValueError("what nobody thought of")]

    def faulty(*arguments: Any, **more: Any) -> Turn:
        if faults:
            raise faults.pop()
        return fire(*arguments, **more)

    monkeypatch.setattr("retryapp.engine.partition.firing.fire", faulty)
    async with MemoryPartition(script, "1s") as partition:
        await partition.send(b"x")
        await partition.advance(1_000)
        (failed,) = partition.observer.of(Event.LANE_FAILED)
        assert (failed.error_type, failed.message) == ("ValueError", "what nobody thought of")
        assert partition.lane.session == 1
        assert len(script.calls) == 1
        await partition.advance(100)  # the lane's pause before it opens again
        assert partition.lane.session == 2
        assert len(script.calls) == 2
        assert not partition.waiting


async def test_when_the_scheduler_last_looked_is_known_and_stands_still_while_the_clock_is_doubted() -> None:
    """Whoever watches must see that nothing fires, whatever the reason."""
    async with MemoryPartition(fine) as partition:
        assert partition.engine.looked_ms == partition.clock.wall_ms()
        await partition.advance(120_000)
        assert partition.clock.wall_ms() - (partition.engine.looked_ms or 0) <= MAX_SLEEP_S * 1_000
        partition.clock.trusted = False
        seen = partition.engine.looked_ms
        await partition.advance(600_000)
        assert partition.engine.looked_ms == seen
    assert partition.engine.looked_ms is None

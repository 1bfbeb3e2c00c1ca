"""Due rows fire once, in bounds, and are not forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import REDELIVERY, BankDownError, Gate, down, make_station, offsets

from retryapp.core.errors import StoreBrokenError
from retryapp.core.rows import row_key
from retryapp.engine import firing as engine_firing
from retryapp.engine.firing import fire
from retryapp.engine.lane import LaneLimits
from retryapp.testing import MemoryPartition, Step


async def test_a_row_is_in_one_turn_only_while_its_firing_is_not_committed() -> None:
    """Claimed when queued: whatever wakes the firing task meanwhile finds it taken."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        gate = orders.transport.pause(Step.COMMIT)
        await orders.advance(1_000)
        for _ in range(5):
            orders.engine.firing.wake.set()
            await orders.advance(10)
        assert len(orders.engine.firing.claimed) == 1
        gate.set()
        await orders.settle()
        assert offsets(orders.records(REDELIVERY.topic)) == [0]
        assert len(orders.engine.firing.claimed) == 0


async def test_a_firing_that_was_not_committed_fires_again_after_the_lane_is_open() -> None:
    """Once: the claim ended with the session."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"))
        await orders.advance(1_000)
        assert orders.records(REDELIVERY.topic) == []
        await orders.advance(100)
        assert offsets(orders.records(REDELIVERY.topic)) == [0]
        assert [dead.attempt for dead in orders.dead_letters] == [2]


async def test_a_firing_whose_commit_was_not_acknowledged_is_not_repeated() -> None:
    """It is on the topic and out of the table, whatever the lane was told."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"), durable=True)
        await orders.advance(1_000)
        await orders.advance(100)
        await orders.advance(60_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [0]
        assert [dead.attempt for dead in orders.dead_letters] == [2]


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
        assert (len(orders.records(REDELIVERY.topic)), len(orders.engine.firing.ahead)) == (6, 5)
        while gate.running:
            gate.let(next(iter(gate.running)))
            await orders.settle()
        assert offsets(orders.records(REDELIVERY.topic)) == list(range(12))
        assert (orders.waiting, len(orders.engine.firing.ahead)) == ({}, 0)


async def test_a_firing_is_bounded_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood becomes several turns."""
    monkeypatch.setattr(engine_firing, "FIRE_LIMIT", 3)
    async with MemoryPartition(down, "1s 1h", limits=LaneLimits(turns=1)) as orders:
        await orders.send(*(b"%d" % n for n in range(7)))
        before = len(orders.transport.batches)
        await orders.advance(1_000)
        fired = [
            count
            for batch in orders.transport.batches[before:]
            if (count := sum(out.topic == REDELIVERY.topic for out in batch.publishes))
        ]
        assert fired == [3, 3, 1]


async def test_a_full_lane_delays_firing_and_nothing_is_forgotten() -> None:
    """Room wakes the firing task."""
    async with MemoryPartition(down, "1s", limits=LaneLimits(backlog=1)) as orders:
        await orders.send(b"a")
        gate = orders.transport.pause(Step.COMMIT)
        await orders.send(b"b")
        await orders.advance(1_000)
        gate.set()
        await orders.settle()
        await orders.advance(1_000)
        await orders.advance(1_000)
        assert offsets(orders.records(REDELIVERY.topic)) == [0, 1]


async def test_a_table_that_cannot_be_read_makes_the_lane_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Firing must not just end: the records would wait for ever behind a lane that looks open."""
    async with MemoryPartition(down, "1s") as orders:
        await orders.send(b"a")
        pending = orders.transport.pending

        def broken(*_: Any, **_named: Any) -> Any:
            raise StoreBrokenError("/data/0", "checksum mismatch")

        monkeypatch.setattr(pending, "due", broken)
        await orders.advance(1_000)
        assert "checksum mismatch" in str(orders.lane.last_error)
        await orders.advance(100)
        assert offsets(orders.records(REDELIVERY.topic)) == [0]


async def test_a_row_that_is_not_due_is_refused_whoever_asks() -> None:
    """The table gives out what is due; if it ever gave out more, nothing of it may come early."""
    station = make_station(down)
    rows = [(row_key(due_at_ms, 0, due_at_ms), b"") for due_at_ms in (1_000, 1_001)]
    with pytest.raises(ValueError, match="row due at 1001 ms would fire at 1000 ms"):
        fire(station, rows, partition=0, now_ms=1_000)

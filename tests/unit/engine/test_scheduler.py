"""Due rows are delivered once, never early, in bounds of rows and bytes, and are not forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import BACKOFF_MS, BankDownError, Gate, fine, pass_time, reopen, scheduler_of, serving

from retryapp.core.row_keys import parse_row_key
from retryapp.core.verdicts import RetryLater
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.partition import scheduler
from retryapp.engine.partition.scheduler import MAX_SLEEP_S
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, Script, Step
from retryapp.testing.tables import MemoryPendingTable


async def test_few_claims_wait_for_a_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood waits in the table, and comes in due order."""
    monkeypatch.setattr(scheduler, "LEAST_AHEAD", 3)
    monkeypatch.setattr(scheduler, "CLAIM_LIMIT", 2)
    async with serving(Gate(), "1s", concurrency=2) as (orders, gate):
        for n in range(12):
            await orders.send(b"%02d" % n)
            await gate.end(orders, b"%02d" % n, BankDownError())
        gate.started.clear()
        await orders.advance(10_000)
        claims = scheduler_of(orders)
        assert (len(gate.running), claims.waiting, len(claims.claimed), sum(orders.waiting.values())) == (2, 4, 6, 12)
        running, (third, *_) = orders.engine.begun_rows, sorted(claims.claimed)[2:]
        assert running == {*sorted(claims.claimed)[:2]}, "the others wait, and are overdue when they are late"
        next_due_ms = claims._pending.due(0, 0, running)[1]
        assert next_due_ms == parse_row_key(third).due_at_ms
        gate.let(b"00")
        await orders.advance(60_000)
        assert (len(gate.running), len(claims.claimed), sum(orders.waiting.values())) == (2, 6, 11)
        while gate.running:
            gate.let(next(iter(gate.running)))
            await orders.advance(1_000)
        assert gate.started == [b"%02d" % n for n in range(12)]
        assert (orders.waiting, claims.claimed, claims.claimed_bytes, claims.waiting) == ({}, {}, 0, 0)


async def test_a_flood_takes_few_looks_at_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs as much as 20 rows, however few there are."""
    look, found = MemoryPendingTable.due, list[int]()

    def due(table: MemoryPendingTable, *args: Any, **more: Any) -> Any:
        rows, next_due_ms = look(table, *args, **more)
        found.append(len(rows))
        return rows, next_due_ms

    async def handle(_: bytes, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise BankDownError

    async with serving(handle, "1s", *[b"a"] * 600, concurrency=1) as (orders, _):
        await orders.advance(500)
        assert orders.waiting == {"1s": 600}
        found.clear()
        monkeypatch.setattr(MemoryPendingTable, "due", due)
        await orders.advance(1_000)
        assert (orders.waiting, sum(found)) == ({}, 600)
        assert len(found) <= 5


ROW_BYTES = 10_000


@pytest.mark.parametrize("bound", ["records", "bytes"])
async def test_outcomes_that_are_not_durable_count(bound: str) -> None:
    """Runners are free, the transaction is not through: no more than may be in flight is delivered meanwhile."""
    limit = {"records": {"max_in_flight": 3}, "bytes": {"max_in_flight_bytes": 2 * ROW_BYTES}}[bound]
    async with serving(Script("fail"), "1s", concurrency=3, **limit) as (orders, _):
        for n in range(9):
            await orders.send(b"%d" % n + bytes(ROW_BYTES))
            await orders.advance(100)
        gate = orders.transport.pause(Step.COMMIT)
        await orders.advance(5_000)
        most = len(scheduler_of(orders).claimed)
        assert most == (3 if bound == "records" else 2), "the last claim may exceed the bytes"
        gate.set()
        await orders.to_rest()
        assert (orders.waiting, scheduler_of(orders).claimed_bytes) == ({}, 0)


async def test_claims_end_with_their_session() -> None:
    """Else each fault of the lane would leave less room, in the end none; the rows are delivered again."""
    async with serving(Script("fail"), "1s", b"a" + bytes(ROW_BYTES)) as (orders, _):
        orders.transport.fail(Step.COMMIT, ConnectionError("cut"), after=0, times=2)
        await pass_time(orders, 5_000, 1_000)
        assert (orders.waiting, scheduler_of(orders).claimed, scheduler_of(orders).claimed_bytes) == ({}, {}, 0)


async def one_runs_and_one_is_claimed(orders: MemoryPartition, gate: Gate) -> None:
    """Have two rows due, `a` and `b`, and a runner for the first."""
    for name in (b"a", b"b"):
        await orders.send(name)
        await gate.end(orders, name, BankDownError())
    await orders.advance(1_000)
    assert (list(gate.running), len(scheduler_of(orders).claimed)) == ([b"a"], 2)


async def test_a_row_that_is_not_due_any_more_at_the_call_waits_on() -> None:
    """The clock was set back since it was claimed; no runner sleeps meanwhile."""
    async with serving(Gate(), "1s", concurrency=1) as (orders, gate):
        await one_runs_and_one_is_claimed(orders, gate)
        orders.clock.jump_wall(-5_000)
        await gate.end(orders, b"a")
        assert (gate.running, scheduler_of(orders).claimed) == ({}, {})
        await orders.advance(4_999)
        assert not gate.running
        await orders.advance(1)
        assert list(gate.running) == [b"b"]


async def test_a_row_that_was_claimed_before_the_clock_was_doubted_waits_on() -> None:
    """It is claimed again once the clock is trusted, and not once more meanwhile."""
    async with serving(Gate(), "1s", concurrency=1) as (orders, gate):
        await one_runs_and_one_is_claimed(orders, gate)
        orders.clock.trusted = False
        gate.let(b"a")
        await orders.advance(5_000)
        assert (gate.running, scheduler_of(orders).claimed) == ({}, {})
        orders.clock.trusted = True
        await orders.advance(1_000)
        assert list(gate.running) == [b"b"]


async def test_a_row_due_in_the_millisecond_of_its_failure_is_not_lost() -> None:
    """The next row has the key of the former one: it takes its place."""
    async with serving(Script(RetryLater(0), RetryLater(0), RetryLater(0)), "1s*5", b"a") as (orders, script):
        await orders.to_rest()
        assert [call.attempt for call in script.calls] == [1, 2, 3, 4]
        assert (orders.waiting, orders.dead_letters) == ({}, [])


async def test_a_row_that_becomes_due_while_the_table_is_scanned_is_delivered_at_once() -> None:
    """Time that passes between the scan and the sleep must not be taken for a lack of room (it slept for a minute)."""
    async with serving(Script("fail"), "1s") as (partition, script):
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
        scheduler_of(partition).changed(0)
        await partition.settle()
        assert len(script.calls) == 2


@pytest.mark.parametrize("where", ["claim", "outcome"])
async def test_a_fault_of_ours_makes_the_lane_open_again(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Passed over, no row would ever be claimed again; or the next commit would pass a record without its outcome."""
    script, faults = Script("fail"), [ValueError("what nobody thought of")]
    async with MemoryPartition(script, "1s") as partition:
        owner, name = {
            "claim": (partition.transport.pending, "due"),
            "outcome": (partition.engine.session, "_turns"),
        }[where]
        real = getattr(owner, name)

        def faulty(*arguments: Any, **more: Any) -> Any:
            if faults:
                raise faults.pop()
            return real(*arguments, **more)

        monkeypatch.setattr(owner, name, faulty)
        await partition.send(b"x")
        await partition.advance(1_100)
        (failed,) = partition.observer.of(Event.LANE_FAILED)
        assert (failed.error_type, failed.message) == ("ValueError", "what nobody thought of")
        await partition.advance(BACKOFF_MS)
        await partition.to_rest()
        assert partition.lane.session == 2
        assert (partition.waiting, partition.dead_letters) == ({}, [])
        assert partition.transport.read(partition.engine.sources[0])[-1].offset + 1 == sum(
            partition.transport.offsets.values()
        )


async def test_nothing_is_claimed_for_a_turn_that_an_older_session_left() -> None:
    """Its outcome is ignored, and the row is delivered in the new session."""
    async with serving(Gate(), "1s", b"a") as (orders, gate):
        await gate.end(orders, b"a", BankDownError())
        await orders.advance(1_000)
        assert list(gate.running) == [b"a"]
        await reopen(orders)
        assert list(gate.running) == [b"a"]
        gate.let(b"a")
        await orders.to_rest()
        assert (orders.waiting, gate.started.count(b"a"), len(gate.done)) == ({}, 3, 1)


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


async def test_due_rows_pass_those_that_run_for_long_however_few_may_be_in_flight() -> None:
    """Room that a look is not worth while runners have claims is worth one when they have none."""
    over, done = asyncio.Event(), list[bytes]()

    async def handle(value: bytes, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise BankDownError
        if value == b"long":
            await over.wait()
        done.append(value)

    async with serving(handle, "1s", *[b"long"] * 5, concurrency=8, max_in_flight=8) as (orders, _):
        await orders.advance(900)
        await orders.send(*[b"short"] * 100)
        assert orders.waiting == {"1s": 105}
        await orders.advance(1_000)
        assert done == [b"short"] * 100
        over.set()
        await orders.to_rest()
        assert orders.waiting == {}

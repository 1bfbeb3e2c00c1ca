"""A row that waits by reference becomes a copy while others change it: its run, commands, a newer record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from doubles import MAIN, Gate, Refusing, about, crowd, events_of, pass_time, post, rows, serving

from retryapp import RetryPolicy
from retryapp.core.control import Verb
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.lifecycle import Commanded
from retryapp.core.rows import OPERATOR
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition, Script, Step

HOUR_MS: Final = 3_600_000
OPTIONS: Final[Any] = {"by_reference": True, "concurrency": 2, "kept_ms": 2 * HOUR_MS + 20_000}
"""It is safe for an hour and 10 s: so a failure that waits for an hour waits by reference."""
LOOK_MS: Final = 400_000
LARGE: Final = b"x" * 100_000
PAUSE: Final = HandlerCommand(id="p", verb=HandlerVerb.PAUSE, by="me", why="a deploy")
RESUME: Final = HandlerCommand(id="r", verb=HandlerVerb.RESUME, by="me")
POLICY: Final = RetryPolicy("1h", timeout="1h")


def put(partition: MemoryPartition, verb: Verb, offset: int, **more: Any) -> None:
    """Put a command on the control topic, and do not wait."""
    post(partition, about(f"{verb}-{offset}", verb, offset, **more))


def lose(partition: MemoryPartition) -> None:
    """Have the main topic lose all records."""
    partition.transport.broker.logs[MAIN].entries.clear()


def refusals(partition: MemoryPartition) -> list[str | None]:
    """Return why commands were refused, in their order."""
    return [event.refused for event in events_of(partition, Commanded) if event.command]


async def pass_on(partition: MemoryPartition) -> None:
    """Have the lane rest, and go on."""
    await pass_time(partition, 300, 100)


async def fail(partition: MemoryPartition, gate: Gate) -> int:
    """Have the run of a record fail; return when."""
    failed_ms = partition.clock.wall_ms()
    await gate.end(partition, b"a", ConnectionError("down"))
    return failed_ms


async def run_again(partition: MemoryPartition, gate: Gate) -> None:
    """Have a record fail, wait by reference, and run once more."""
    await partition.send(b"a")
    await fail(partition, gate)
    await partition.advance(HOUR_MS)
    await partition.advance(1_000)


async def test_no_command_changes_a_row_whose_outcome_a_topic_refuses() -> None:
    """Also where its copy was on the way when it ended."""
    async with serving(Gate(), POLICY, **OPTIONS) as (orders, gate):
        await run_again(orders, gate)
        assert [row.reference is None for row in rows(orders)] == [False]
        commit = orders.transport.pause(Step.COMMIT)
        await orders.advance(LOOK_MS)
        assert commit.reached
        refusing = Refusing(orders.transport, b"a")
        refusing.topics = "dlq"
        await fail(orders, gate)
        commit.set()
        await pass_on(orders)
        assert refusing.tries
        assert [row.reference is None for row in rows(orders)] == [True]
        assert (await orders.command("hold", 0))["refused"] == "running"
        refusing.prefixes = ()
        await orders.to_rest()
        assert len(orders.dead_letters) == 1


async def test_a_copy_that_the_changelog_refuses_is_dropped() -> None:
    """Else it would come later, behind the outcome: the record would run again. The next look makes another one."""
    async with serving(Gate(), POLICY, **OPTIONS) as (orders, gate):
        await run_again(orders, gate)
        refusing = Refusing(orders.transport, b"\x02\x00")
        refusing.topics = orders.handler.topology.pending_changelog
        await orders.advance(LOOK_MS)
        assert refusing.tries
        gate.let(b"a")
        await pass_on(orders)
        assert rows(orders) == []
        refusing.prefixes = ()
        await orders.advance(31_000)
        assert (rows(orders), gate.started) == ([], [b"a", b"a"])
        assert orders.lane.refusal is None


async def test_no_row_comes_back_after_its_outcome() -> None:
    """Its copy is durable, its outcome is not yet, and a command is next that was taken before both."""
    async with serving(Gate(), POLICY, b"a", **OPTIONS) as (orders, gate):
        await fail(orders, gate)
        await orders.advance(600_000)
        await orders.send(b"x")
        await gate.end(orders, b"x", ConnectionError("down"))
        await orders.advance(3_000_000)
        await orders.advance(1_000)
        assert gate.started == [b"a", b"x", b"a"]
        assert [row.reference is None for row in rows(orders)] == [False, False]
        read = orders.transport.pause("records")  # type: ignore[arg-type]
        put(orders, Verb.CANCEL, 1)
        put(orders, Verb.HOLD, 0)
        await orders.settle()
        assert read.reached
        copy, outcome = orders.transport.pause(Step.COMMIT), orders.transport.pause(Step.COMMIT)
        await orders.advance(LOOK_MS)
        assert copy.reached
        await gate.end(orders, b"a")
        copy.set()
        await pass_on(orders)
        assert outcome.reached
        read.set()
        await orders.settle()
        outcome.set()
        await gate.end_all(orders)
        assert rows(orders) == []
        assert gate.done.count(b"a") == 1


async def test_a_command_waits_for_the_copy_of_its_row() -> None:
    """Else it would write the row as it was read before, without what it waits for."""
    async with serving(Script("fail", "fail"), POLICY, b"a", **OPTIONS) as (orders, _):
        await orders.obey(PAUSE)
        await orders.advance(600_000)
        await orders.send(b"x")
        await orders.obey(RESUME)
        await orders.obey(PAUSE.model_copy(update={"id": "p2"}))
        await orders.advance(3_000_000)
        await orders.advance(1_000)
        assert [row.reference is None for row in rows(orders)] == [False, False]
        read = orders.transport.pause("records")  # type: ignore[arg-type]
        put(orders, Verb.CANCEL, 1)
        put(orders, Verb.HOLD, 0)
        await orders.settle()
        assert read.reached
        commit = orders.transport.pause(Step.COMMIT)
        await orders.advance(LOOK_MS)
        assert commit.reached
        read.set()
        await orders.settle()
        commit.set()
        await pass_on(orders)
        (row,) = rows(orders)
        assert (row.hold, row.reference) == (OPERATOR, None)


async def test_a_second_hold_of_a_claimed_row_is_not_undone_by_its_copy() -> None:
    """It has another deadline, which is on its way when the copy is made."""
    async with serving(Script("fail"), POLICY, b"a", **OPTIONS) as (orders, _):
        crowd(orders.handler.orphans)
        await orders.advance(HOUR_MS)
        await orders.advance(350_000)
        assert (await orders.command("hold", 0, hold_ms=HOUR_MS))["refused"] is None
        await pass_on(orders)
        commit, now_ms = orders.transport.pause(Step.COMMIT), orders.clock.wall_ms()
        put(orders, Verb.HOLD, 0, hold_ms=5 * HOUR_MS)
        await orders.settle()
        assert commit.reached
        await orders.advance(15_000)
        commit.set()
        await pass_on(orders)
        (row,) = rows(orders)
    assert row.hold_next_ms == now_ms + 5 * HOUR_MS


async def test_what_is_too_large_for_our_topics_stays_a_reference() -> None:
    """Its lane would try to write it for ever. It is delivered while the main topic has it."""
    script = Script("fail")
    orders = MemoryPartition(script, POLICY, **OPTIONS)
    orders.engine.context = replace(orders.engine.context, max_bytes=50_000)
    async with orders:
        await orders.send(LARGE)
        await orders.obey(PAUSE)
        await orders.advance(HOUR_MS + LOOK_MS)
        await orders.advance(LOOK_MS)
        assert [row.reference is None for row in rows(orders)] == [False]
        await orders.obey(RESUME)
        await orders.to_rest()
    assert [seen.came_to for seen in script.calls] == ["ConnectionError", "ok"]


async def test_copies_wait_for_a_lane_that_is_slow() -> None:
    """They are as large as their records, and all may be unsafe at once."""
    async with serving(Script(*["fail"] * 80), POLICY, *[LARGE] * 80, **OPTIONS) as (orders, _):
        await orders.obey(PAUSE)
        await orders.advance(HOUR_MS)
        await orders.advance(1_000)
        commit = orders.transport.pause(Step.COMMIT)
        await orders.advance(LOOK_MS)
        assert commit.reached
        assert orders.lane._queued_bytes < 12 * len(LARGE)
        commit.set()
        for _ in range(10):
            await pass_on(orders)
        assert [row.reference is None for row in rows(orders)] == [True] * 80


async def test_a_topic_that_keeps_records_for_less_time_now_is_heeded() -> None:
    """After the next start: what a row says is as old as its failure."""
    async with serving(Script("fail"), POLICY, b"a", by_reference=True) as (orders, _):
        await orders.obey(PAUSE)
    async with MemoryPartition(Script(), POLICY, transport=orders.transport, **OPTIONS) as orders:
        await orders.advance(HOUR_MS)
        assert [row.reference is None for row in rows(orders)] == [False]
        await orders.advance(LOOK_MS)
        assert [row.reference is None for row in rows(orders)] == [True]


async def test_a_newer_record_replaces_a_row_also_while_that_is_copied() -> None:
    """The handler waited by reference before; only the newest counts now."""
    async with MemoryPartition(Script("fail"), POLICY, **OPTIONS) as orders:
        await orders.send(b"old", key=b"k")
    gate = Gate()
    orders.clock.advance(HOUR_MS + LOOK_MS)
    options: Any = {**OPTIONS, "by_reference": False, "order": Order.LATEST}
    orders.transport.append(MAIN, b"k", b"new")
    async with MemoryPartition(gate, POLICY, transport=orders.transport, **options) as orders:
        assert gate.started == [b"new"]
        read = orders.transport.pause("records")  # type: ignore[arg-type]
        await orders.advance(60_000)
        assert read.reached
        await gate.end(orders, b"new")
        read.set()
        await pass_on(orders)
        assert rows(orders) == []


async def test_a_run_that_fails_waits_by_what_the_topic_keeps_now() -> None:
    """What its row said is as old as its first failure: until the next look the topic might lose it."""
    policy = RetryPolicy("30m 2h")
    async with MemoryPartition(Script("fail"), policy, by_reference=True) as orders:
        await orders.send(b"a")
    async with MemoryPartition(Script("fail", "fail"), policy, transport=orders.transport, **OPTIONS) as orders:
        await orders.advance(HOUR_MS // 2)
        (row,) = rows(orders)
    assert (row.attempt, row.value, row.reference) == (2, b"a", None)


@pytest.mark.parametrize("durable", [True, False])
async def test_a_claimed_row_whose_copy_was_made_is_not_gone(durable: bool) -> None:
    """The topic deletes the record while the read is tried again; its copy was read before that."""
    async with serving(Script("fail"), POLICY, b"a", **OPTIONS) as (orders, script):
        read = orders.transport.pause("records")  # type: ignore[arg-type]
        await orders.advance(HOUR_MS)
        await orders.advance(1)
        assert read.reached
        commit = orders.transport.pause(Step.COMMIT)
        await orders.advance(LOOK_MS)
        assert commit.reached
        if durable:
            commit.set()
            await pass_on(orders)
            assert [row.reference for row in rows(orders)] == [None]
        lose(orders)
        read.set()
        await orders.settle()
        commit.set()
        await orders.to_rest()
        assert orders.dead_letters == []
    assert [seen.came_to for seen in script.calls] == ["ConnectionError", "ok"]


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_hold_that_ends_while_its_copy_is_on_the_way_keeps_the_copy(order: Order) -> None:
    """It would be a reference again, and the topic may lose it."""
    async with serving(Script("fail"), POLICY, b"a", key=b"k", order=order, **OPTIONS) as (orders, script):
        assert (await orders.command("hold", 0, hold_ms=HOUR_MS + LOOK_MS + 1_000))["refused"] is None
        commit = orders.transport.pause(Step.COMMIT)
        await orders.advance(HOUR_MS)
        await orders.advance(LOOK_MS)
        assert commit.reached
        lose(orders)
        await orders.advance(2_000)
        commit.set()
        await orders.to_rest()
        assert orders.dead_letters == []
    assert [seen.came_to for seen in script.calls] == ["ConnectionError", "ok"]


async def test_a_copy_that_begins_while_a_command_waits_is_waited_for_too() -> None:
    """The command waits for one before it about the same record."""
    async with serving(Script("fail"), RetryPolicy("1h"), b"a", by_reference=True) as (orders, _):
        await orders.command("reschedule", 0, due_at_ms=orders.clock.wall_ms() + 9 * HOUR_MS)
    async with MemoryPartition(Script(), POLICY, transport=orders.transport, **OPTIONS) as orders:
        await orders.advance(HOUR_MS)
        await orders.advance(LOOK_MS - 50_000)
        refused, copy = orders.transport.pause(Step.COMMIT), orders.transport.pause(Step.COMMIT)
        put(orders, Verb.RELEASE, 0)
        put(orders, Verb.HOLD, 0)
        await orders.settle()
        assert refused.reached
        await orders.advance(15_000)
        refused.set()
        await pass_on(orders)
        assert copy.reached
        copy.set()
        await pass_on(orders)
        (row,) = rows(orders)
    assert (row.hold, row.reference) == (OPERATOR, None)


async def test_a_copy_behind_a_refused_turn_keeps_nobody_waiting() -> None:
    """In an ordered handler all wait for that, and a command about the copy's record is refused meanwhile."""
    async with serving(Gate(), POLICY, b"a", key=b"a", order=Order.KEY, **OPTIONS) as (orders, gate):
        await fail(orders, gate)
        await orders.command("hold", 0, hold_ms=9 * HOUR_MS)
        refusing = Refusing(orders.transport, b"b")
        await orders.send(b"b", key=b"b")
        gate.let(b"b", Reject("wrong"))
        await orders.advance(HOUR_MS)
        assert refusing.tries
        await orders.advance(LOOK_MS)
        put(orders, Verb.RELEASE, 0)
        await orders.settle()
        refusing.prefixes = ()
        await orders.advance(31_000)
        (row,) = rows(orders)
        assert refusals(orders) == [None, "running"]
    assert (row.hold, row.reference) == (OPERATOR, None)


async def test_a_command_waits_for_the_row_that_a_first_delivery_puts() -> None:
    """The record fails while the command waits for one before it, so the row is still on its way."""
    async with serving(Gate(), RetryPolicy("2h", timeout="3h"), b"a", **OPTIONS) as (orders, gate):
        first, second = orders.transport.pause(Step.COMMIT), orders.transport.pause(Step.COMMIT)
        put(orders, Verb.HOLD, 0)
        await orders.settle()
        assert first.reached
        put(orders, Verb.RESCHEDULE, 0, due_at_ms=orders.clock.wall_ms() + 9 * HOUR_MS)
        first.set()
        await pass_on(orders)
        assert second.reached
        failed_ms = await fail(orders, gate)
        second.set()
        await pass_on(orders)
        (row,) = rows(orders)
        assert refusals(orders) == ["not-waiting", None]
    told = decode_metadata(row.headers)
    assert told is not None
    assert (told.last_failed_ms, row.hold, row.due_at_ms > failed_ms + 8 * HOUR_MS) == (failed_ms, 0, True)


async def test_a_record_that_is_replaced_while_a_cancel_reads_it_is_not_dead() -> None:
    """It has one end: a newer one takes its place."""
    async with MemoryPartition(Script("fail"), POLICY, **OPTIONS) as orders:
        await orders.send(b"old", key=b"k")
    gate = Gate()
    options: Any = {**OPTIONS, "by_reference": False, "order": Order.LATEST}
    async with MemoryPartition(gate, POLICY, transport=orders.transport, **options) as orders:
        read = orders.transport.pause("records")  # type: ignore[arg-type]
        put(orders, Verb.CANCEL, 0)
        await orders.settle()
        assert read.reached
        await orders.send(b"new", key=b"k")
        read.set()
        await orders.settle()
        await gate.end_all(orders)
        assert (gate.done, orders.dead_letters) == ([b"new"], [])
        assert refusals(orders) == ["not-waiting"]


async def test_what_waits_by_reference_is_not_copied_to_the_main_topic_without_its_payload() -> None:
    """The handler waited by reference before; its record is on the main topic already."""
    async with serving(Script("fail"), POLICY, **OPTIONS) as (orders, script):
        await orders.send(b"a", headers=(("trace", b"1"),))
    async with MemoryPartition(script, POLICY, through_main=True, transport=orders.transport) as orders:
        await orders.to_rest()
        main = orders.records("orders")
    assert [(each.value, each.headers[0]) for each in main] == [(b"a", ("trace", b"1"))] * len(main)
    assert [(seen.value, seen.came_to) for seen in script.calls] == [(b"a", "ConnectionError"), (b"a", "ok")]

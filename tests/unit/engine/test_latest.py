"""Of each key only the newest record counts: who runs, who is superseded, and what the next session makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import (
    DLQ,
    MAIN,
    BankDownError,
    Gate,
    Refusing,
    about,
    committed,
    events_of,
    held,
    pass_time,
    post,
    reopen,
    serving,
    tell,
)

from retryapp.core.control import Verb
from retryapp.core.jobs import HandlerVerb, JobCommand, JobPart, JobVerb, LetterFilter
from retryapp.core.lifecycle import Superseded
from retryapp.core.verdicts import Defer, Reject, Skip
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.engine.partition.latest import READ_S
from retryapp.ports import Event
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step

LATEST: dict[str, Any] = {"concurrency": 9, "order": Order.LATEST}
ALONE: dict[str, Any] = {"max_in_flight": 1, "order": Order.LATEST}


def superseded(partition: MemoryPartition) -> list[tuple[int, int, int, int]]:
    """Return what events say: offset, by which one it was replaced, delivery and attempt."""
    return [
        (int(event.origin.rsplit("/", 1)[1]), event.by_offset, event.delivery, event.attempt)
        for event in events_of(partition, Superseded)
    ]


@pytest.mark.parametrize("end", [None, BankDownError(), Reject("wrong"), Skip("old")])
async def test_a_newer_record_runs_at_once_and_its_outcome_removes_the_row_of_the_older_one(
    end: Exception | None,
) -> None:
    """Whatever it is, in the same transaction; until then the row is there, and cannot be claimed once it is due."""
    async with serving(Gate(), "1m 1m", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", BankDownError())
        assert orders.waiting == {"1m": 1}
        await orders.send(b"2", key=b"a")
        await orders.advance(60_000)
        assert (gate.started, orders.waiting, superseded(orders)) == ([b"1", b"2"], {"1m": 1}, [])
        await gate.end(orders, b"2", end)
        assert superseded(orders) == [(0, 1, 1, 1)]
        assert (sum(orders.waiting.values()), committed(orders)) == (isinstance(end, BankDownError), 2)
        (batch,) = (batch for batch in orders.transport.batches if any(row.value is None for row in batch.rows))
        assert batch.offsets == {MAIN: 2}
        assert len(orders.observer.of(Event.SUPERSEDED)) == 1
        await gate.end_all(orders)
        assert gate.started == [b"1", b"2"] + [b"2"] * isinstance(end, BankDownError)


async def test_a_row_that_is_on_its_way_out_is_not_put_aside_for_good() -> None:
    """A scan finds it until its removal is in the table; else each such row would be remembered for the session."""
    async with serving(Gate(), "1s", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", BankDownError())
        await orders.advance(500)
        await orders.send(b"other", key=b"b")
        await gate.end(orders, b"other", BankDownError())
        await orders.send(b"2", key=b"a")
        await orders.advance(500)
        committing = orders.transport.pause(Step.COMMIT)
        await gate.end(orders, b"2")
        await orders.advance(500)  # it looks, as the other one is due
        assert (committing.reached, gate.started) == (True, [b"1", b"other", b"2", b"other"])
        committing.set()
        await orders.settle()
        assert orders.engine.session is not None
        assert orders.engine.session.sequences is not None
        assert (orders.engine.session.sequences.aside, orders.waiting) == ({}, {"1s": 1})
        await gate.end_all(orders)


async def test_newer_records_wait_for_a_run_and_replace_each_other() -> None:
    """Other keys, and records without one, do not wait. Each record of a key that began ends before the next begins."""
    async with serving(Gate(), "1m 1m", b"1", b"2", b"3", None, key=b"a", **LATEST) as (orders, gate):
        await orders.send(b"b", key=b"b")
        await orders.send(b"n", b"m", key=None)
        assert gate.started == [b"1", b"b", b"n", b"m"]
        await gate.end(orders, b"1")
        assert gate.started[4:] == [None]  # type: ignore[comparison-overlap]
        await gate.end_all(orders)
        assert superseded(orders) == [(1, 2, 0, 0), (2, 3, 0, 0)]
        assert (committed(orders), orders.dead_letters) == (7, [])


@pytest.mark.parametrize("row", [False, True])
async def test_an_older_record_that_fails_while_a_newer_one_waits_is_superseded_unless_it_is_dead(row: bool) -> None:
    """As a first delivery, and as a row; the newer one is attempt 1."""
    gate, attempts = Gate(), list[tuple[bytes, int]]()

    async def handle(value: bytes, delivery: Delivery) -> None:
        attempts.append((value, delivery.attempt))
        await gate(value)

    async with MemoryPartition(handle, "1s 1s", **LATEST) as orders:
        for name, end in ((b"a", BankDownError()), (b"b", Reject("wrong"))):
            await orders.send(name + b"1", key=name)
            if row:
                await gate.end(orders, name + b"1", BankDownError())
                await orders.advance(1_000)
            await orders.send(name + b"2", key=name)
            await gate.end(orders, name + b"1", end)
            await gate.end(orders, name + b"2")
        await orders.to_rest()
        assert superseded(orders) == [(0, 1, 1 + row, 1 + row)]
        assert len(orders.records("app.orders.retry")) == 2 * row, "it waits for nothing, so it has no copy"
        assert [letter.origin.offset for letter in orders.dead_letters] == [2]
        assert attempts == [(b"a1", 1), *[(b"a1", 2)] * row, (b"a2", 1), (b"b1", 1), *[(b"b1", 2)] * row, (b"b2", 1)]


@pytest.mark.parametrize("dies", ["while it runs", "at its commit"])
async def test_after_a_crash_the_newest_is_still_there_and_no_older_one_runs(dies: str) -> None:
    """The older row is due by then; it waits until the newer one is read again."""
    async with serving(Gate(), "1m 1m", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", BankDownError())
        await orders.send(b"2", key=b"a")
        assert gate.started == [b"1", b"2"]
        if dies == "at its commit":
            orders.transport.pause(Step.COMMIT)
            await gate.end(orders, b"2")
    orders.transport.clock.advance(120_000)
    async with serving(Gate(), "1m 1m", transport=orders.transport, **LATEST) as (orders, gate):
        assert (gate.started, superseded(orders)) == ([b"2"], [])
        await reopen(orders)
        await gate.end_all(orders)
        assert (set(gate.started), superseded(orders)) == ({b"2"}, [(0, 1, 1, 1)])


async def test_at_an_opening_rows_wait_until_the_main_topic_is_read() -> None:
    """Up to where it ended then; or for a bounded time, where that takes long."""
    for patient in (True, False):
        gate, transport = Gate(), MemoryLaneTransport()
        async with serving(gate, "1m 1m", b"1", key=b"a", transport=transport, **LATEST) as (orders, _):
            await gate.end(orders, b"1", BankDownError())
        transport.clock.advance(120_000)
        transport.append(MAIN, b"b", b"other")
        transport.append(MAIN, b"a", b"2")
        async with serving(Gate(), "1m 1m", transport=transport, **ALONE) as (orders, gate):
            await orders.advance(int(READ_S * 1_000) - 1)
            assert gate.started == [b"other"]
            if patient:
                await gate.end(orders, b"other")
                assert gate.started == [b"other", b"2"]
            else:
                await orders.advance(2)
                assert gate.started == [b"other", b"1"]
            await gate.end_all(orders)
            assert gate.done == ([b"other", b"2"] if patient else [b"other", b"1", b"2"])
            assert superseded(orders) == [(0, 2, 1, 1)] * patient


async def test_rows_do_not_wait_for_what_is_no_record() -> None:
    """A topic that ends with a transaction marker is read once that is passed, also while a record before it runs."""
    async with serving(Gate(), "1m 1m", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", BankDownError())
    orders.transport.clock.advance(120_000)
    orders.transport.append(MAIN, b"b", b"other")
    orders.transport.broker.logs[MAIN].end += 1
    async with serving(Gate(), "1m 1m", transport=orders.transport, **LATEST) as (orders, gate):
        await orders.advance(1_000)
        assert gate.started == [b"other", b"1"]


async def test_a_duplicate_replaces_nothing() -> None:
    """It is skipped before anybody looks at its key."""
    async with serving(Gate(), "1m 1m", deduplicate="header:id", **LATEST) as (orders, gate):
        await orders.send(b"1", key=b"a", headers=(("id", b"1"),))
        await orders.send(b"2", key=b"a", headers=(("id", b"2"),))
        await orders.send(b"2", key=b"a", headers=(("id", b"2"),))
        await gate.end_all(orders)
        assert (gate.done, superseded(orders)) == ([b"1", b"2"], [])
        assert len(orders.observer.of(Event.SKIPPED)) == 1


async def test_of_the_rows_that_another_order_has_left_only_the_newest_of_a_key_runs() -> None:
    """The others end at the opening; a record that is read again beside its row is passed."""
    gate, transport = Gate(), MemoryLaneTransport()
    async with MemoryPartition(gate, "1s", order=Order.KEY, transport=transport) as orders:
        await orders.send(*(b"%03d" % number for number in range(250)), key=b"a")
        await orders.send(b"b", key=b"b")
        gate.let(b"000", BankDownError())
        await orders.until(lambda: held(orders) == 249)
    transport.offsets[MAIN], gate = 240, Gate()
    async with MemoryPartition(gate, "1s", transport=transport, **LATEST) as orders:
        assert len(superseded(orders)) == 240, "those before the offset do not wait for the end of the newest"
        await gate.end_all(orders)
        assert gate.done == [b"b", b"249"] or gate.done == [b"249", b"b"]
        gone = superseded(orders)
        assert sorted(gone) == [(0, 249, 1, 1), *((number, 249, 0, 0) for number in range(1, 249))]
        assert (committed(orders), orders.observer.of(Event.LANE_FAILED)) == (251, [])


async def test_a_record_before_a_row_of_its_key_is_superseded_by_it() -> None:
    """Somebody has set the group's offset back: what comes again is older."""
    async with serving(Gate(), "1s", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1")
        await orders.send(b"2", key=b"a")
        await gate.end(orders, b"2", BankDownError())
    orders.transport.offsets[MAIN], gate = 0, Gate()
    gate.let_all()
    async with MemoryPartition(gate, "1s", transport=orders.transport, **LATEST) as orders:
        await orders.to_rest()
        assert (gate.done, superseded(orders)) == ([b"2"], [(0, 1, 0, 0)])


async def test_what_waits_goes_on_where_a_command_takes_the_newer_one_away() -> None:
    """Nothing replaces it any more; it has no row to wait for, either."""
    async with serving(Gate(), "1m", b"1", b"2", key=b"a", concurrency=9) as (orders, gate):
        for value in (b"1", b"2"):
            await gate.end(orders, value, BankDownError())
    post(orders, about("away", Verb.CANCEL, 1))
    orders.transport.offsets[MAIN], gate = 0, Gate()
    gate.let_all()
    async with MemoryPartition(gate, "1m", transport=orders.transport, **LATEST) as orders:
        await orders.to_rest()
        assert (gate.done, len(orders.dead_letters), superseded(orders)) == ([b"1"], 1, [])


async def test_a_newer_record_waits_until_the_older_ones_row_is_in_the_table() -> None:
    """Else its outcome could not remove that. It waits in memory; a topic that refuses the row holds both back."""
    async with serving(Gate(), "1m 1m", b"1", key=b"a", **LATEST) as (orders, gate):
        committing = orders.transport.pause(Step.COMMIT)
        await gate.end(orders, b"1", BankDownError())
        await orders.send(b"2", key=b"a")
        assert (committing.reached, gate.started, held(orders)) == (True, [b"1"], 0)
        committing.set()
        await orders.settle()
        assert (gate.started, orders.waiting) == ([b"1", b"2"], {"1m": 1})
        refusing = Refusing(orders.transport, b"2")
        refusing.topics = ".retry"
        await gate.end(orders, b"2", BankDownError())
        await orders.send(b"3", key=b"a")
        await orders.advance(100)
        assert (gate.started, orders.waiting) == ([b"1", b"2"], {"1m": 1})
        refusing.prefixes = ()
        await orders.advance(60_000)
        assert gate.started == [b"1", b"2", b"3"]
        await gate.end_all(orders)
        assert superseded(orders) == [(0, 1, 1, 1), (1, 2, 1, 1)]


async def test_no_command_brings_a_row_back_that_a_newer_record_has_replaced() -> None:
    """What replaces it is on its way when the command comes to it, behind others that were taken with it."""
    async with serving(Gate(), "1h", b"other", key=b"b", **LATEST) as (orders, gate):
        await orders.send(b"old", key=b"a")
        gate.let(b"other", BankDownError())
        await gate.end(orders, b"old", BankDownError())
        await orders.advance(60_000)
        await orders.advance(1_000)
        await orders.send(b"new", key=b"a")
        commit = orders.transport.pause(Step.COMMIT)
        for number, offset in enumerate((0, 0, 1)):
            post(orders, about(f"{number}", Verb.HOLD, offset))
        await orders.settle()
        assert commit.reached
        await gate.end(orders, b"new")
        commit.set()
        await pass_time(orders, 400, 100)
        assert superseded(orders) == [(1, 2, 1, 1)]
        assert orders.waiting == {"1h": 1}
        gate.let_all()
        await orders.advance(400 * 86_400_000)
        assert gate.started == [b"other", b"old", b"new", b"other"]


async def test_a_hold_that_ends_does_not_bring_back_what_a_newer_record_has_replaced() -> None:
    """Its deadline comes while the outcome that removes its row is being committed."""
    async with serving(Gate(), "1h", b"old", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"old", BankDownError())
        assert (await orders.command("hold", 0, hold_ms=1_000))["refused"] is None
        await orders.send(b"new", key=b"a")
        commit = orders.transport.pause(Step.COMMIT)
        await gate.end(orders, b"new")
        assert commit.reached
        await orders.advance(1_000)
        commit.set()
        await orders.settle()
        assert (superseded(orders), orders.waiting) == ([(0, 1, 1, 1)], {})
        await gate.end_all(orders)
        assert gate.started == [b"old", b"new"]


async def test_a_replay_by_force_is_tried_again_until_a_newer_record_begins() -> None:
    """Newer records that have ended do not count, also at the next opening; one that waits or comes later does."""
    async with serving(Gate(), "1m 1m", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", Reject("wrong"))
        await orders.send(b"2", key=b"a")
        assert (await orders.command("replay", 0, force=True))["refused"] == "superseded"
        await gate.end(orders, b"2")
        assert (await orders.command("replay", 0))["refused"] == "superseded"
        assert (await orders.command("replay", 0, force=True))["refused"] is None
        await orders.settle()
        assert gate.started == [b"1", b"2", b"1"]
        await reopen(orders)
        assert gate.started == [b"1", b"2", b"1", b"1"]
        await gate.end(orders, b"1", BankDownError())
        assert orders.waiting == {"1m": 1}
        await orders.send(b"3", key=b"a")
        await orders.advance(60_000)
        assert gate.started[4:] == [b"3"]
        gate.let(b"3")
        await orders.to_rest()
        assert [told[:2] for told in superseded(orders)] == [(0, 2)]
        assert gate.started[5:] == []


async def test_what_is_replayed_by_force_waits_for_a_newer_record_that_is_not_read_yet() -> None:
    """That one died with its worker, and is behind others: it refuses nothing, but it replaces the older one."""
    async with serving(Gate(), "1m 1m", b"1", key=b"a", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", Reject("wrong"))
        await orders.send(b"other", key=b"b")
        await orders.send(b"2", key=b"a")
        assert gate.started == [b"1", b"other", b"2"]
    async with serving(Gate(), "1m 1m", transport=orders.transport, **ALONE) as (
        orders,
        gate,
    ):
        assert (await orders.command("replay", 0, force=True))["refused"] is None
        await orders.advance(1_000)
        assert (gate.started, orders.waiting) == ([b"other"], {"replay": 1})
        await gate.end(orders, b"other")
        gate.let(b"2")
        await orders.to_rest()
        assert (gate.started, [told[:2] for told in superseded(orders)]) == ([b"other", b"2"], [(0, 2)])


async def with_letters(orders: MemoryPartition, gate: Gate, *values: bytes) -> None:
    """Have records of one key die."""
    for value in values:
        await orders.send(value, key=b"a")
        await gate.end(orders, value, Reject("wrong"))
    await orders.advance(500)
    gate.started.clear()


async def force(orders: MemoryPartition, offset: int) -> str | None:
    """Have a dead record replayed; return why that is refused."""
    refused: str | None = (await orders.command("replay", offset, force=True))["refused"]
    await orders.advance(500)
    return refused


@pytest.mark.parametrize(("together", "reopens"), [(1, False), (50, False), (50, True)])
async def test_of_the_letters_of_a_key_that_a_job_brings_back_the_newest_runs(
    together: int, monkeypatch: pytest.MonkeyPatch, *, reopens: bool
) -> None:
    """It replaces the others, which came back before: in the same turn, or in turns of their own."""
    monkeypatch.setattr("retryapp.engine.partition.jobs.MOST_BESIDE", together)
    async with serving(Gate(), "1m 1m", **LATEST) as (orders, gate):
        await with_letters(orders, gate, b"1", b"2", b"3")
        await tell(orders, HandlerVerb.PAUSE)
        upto = {DLQ: orders.records(DLQ)[-1].offset + 1}
        part = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), canary=0, upto=upto, force=True)
        assert (await orders.obey(JobCommand(id="c", job="j", verb=JobVerb.START, part=part)))["refused"] is None
        await pass_time(orders, 1_000, 50)
        assert (gate.started, orders.waiting) == ([], {"replay": 3})
        if reopens:
            await reopen(orders)
        await tell(orders, HandlerVerb.RESUME)
        assert gate.started == [b"3"]
        await gate.end_all(orders)
        assert (gate.started, orders.waiting) == ([b"3"], {})
        assert sorted(told[:2] for told in superseded(orders)) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("end", [None, BankDownError(), Reject("wrong")])
async def test_a_newer_letter_is_replayed_behind_an_older_record_that_runs(end: Exception | None) -> None:
    """As a newer record would be: it begins once that has ended, and supersedes it if it fails."""
    async with serving(Gate(), "1m 1m", **LATEST) as (orders, gate):
        await with_letters(orders, gate, b"1", b"2")
        assert [await force(orders, 0), await force(orders, 1), await force(orders, 1)] == [None, None, "waiting"]
        assert (gate.started, orders.waiting) == ([b"1"], {"replay": 2})
        await gate.end(orders, b"1", end)
        await orders.advance(500)
        assert (gate.started, orders.waiting) == ([b"1", b"2"], {"replay": 1})
        await gate.end(orders, b"2", BankDownError())
        await orders.send(b"3", key=b"a")
        await gate.end_all(orders)
        assert gate.started == [b"1", b"2", b"3"]
        failed = isinstance(end, BankDownError)
        assert [told[:2] for told in superseded(orders)] == [*[(0, 1)] * failed, (1, 2)]
        assert len(orders.dead_letters) == 2 + isinstance(end, Reject)


async def test_a_replay_takes_the_place_of_an_older_row_until_a_command_takes_it_away() -> None:
    """Nothing changes the older one meanwhile; an even older letter is refused."""
    async with serving(Gate(), "1m 1m", **LATEST) as (orders, gate):
        await with_letters(orders, gate, b"1", b"2", b"3")
        await force(orders, 1)
        await gate.end(orders, b"2", BankDownError())
        await tell(orders, HandlerVerb.PAUSE)
        assert [await force(orders, 0), await force(orders, 2)] == ["superseded", None]
        assert (await orders.command("hold", 1))["refused"] == "not-waiting"
        assert (await orders.command("cancel", 2))["refused"] is None
        assert (await orders.command("retry-now", 1))["refused"] is None
        await tell(orders, HandlerVerb.RESUME)
        await gate.end_all(orders)
        assert (gate.started, superseded(orders), orders.waiting) == ([b"2", b"2"], [], {})


async def test_none_goes_on_that_is_older_than_one_that_was_superseded() -> None:
    """A command takes away what has superseded both."""
    async with serving(Gate(), "1h", b"1", b"2", b"3", key=b"a", concurrency=9) as (orders, gate):
        for value, error in ((b"1", BankDownError()), (b"2", None), (b"3", BankDownError())):
            await gate.end(orders, value, error)
        await orders.advance(500)
        assert committed(orders) == 3
    transport = orders.transport
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 0
    async with serving(Gate(), "1h", transport=transport, **LATEST) as (orders, gate):
        await orders.advance(1_000)
        assert superseded(orders) == [(1, 2, 0, 0), (0, 1, 1, 1)]
        assert (await orders.command("cancel", 2))["refused"] is None
        await pass_time(orders, 7_200_000, 600_000)
        assert (gate.started, orders.waiting) == ([], {})


async def test_an_early_release_brings_no_row_back_that_a_newer_one_replaces() -> None:
    """Its removal is on its way as the session begins, and the release that was kept comes behind it."""
    tokens: dict[bytes, str] = {}
    go, seen = asyncio.Event(), list[bytes]()

    async def defer(value: bytes, delivery: Delivery) -> None:
        tokens[value] = delivery.token
        if value == b"1":
            raise BankDownError
        await go.wait()
        raise Defer("1h")

    async def note(value: bytes) -> None:
        seen.append(value)

    async with serving(defer, "1h*3", b"0", b"1", key=b"a", concurrency=9) as (orders, _):
        await pass_time(orders, 2_000, 1_000)
        assert (await orders.command("release", tokens[b"0"]))["after"] == "released"
        dying = orders.transport.pause(Step.COMMIT, durable=True)
        go.set()
        await orders.advance(1_000)
        assert dying.reached
    transport = orders.transport
    slow = transport.pause(Step.COMMIT, after=1)
    async with MemoryPartition(note, "1h*3", transport=transport, **LATEST) as orders:
        await orders.advance(1_000)
        slow.set()
        await pass_time(orders, 3_602_000, 1_200_000)
    async with MemoryPartition(note, "1h*3", transport=transport, **LATEST) as orders:
        await orders.advance(1_000)
        assert (slow.reached, seen, orders.waiting) == (True, [b"1"], {})


async def test_a_letter_without_a_key_is_replayed_without_force() -> None:
    """No newer record replaces it."""
    async with serving(Gate(), "1m", b"1", **LATEST) as (orders, gate):
        await gate.end(orders, b"1", Reject("wrong"))
        await orders.advance(500)
        assert (await orders.command("replay", 0))["refused"] is None

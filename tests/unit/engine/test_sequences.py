"""Order within a key, or a partition: who runs, who waits where, and what the next session makes of it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from doubles import (
    MAIN,
    BankDownError,
    Gate,
    Refusing,
    Stubborn,
    about,
    committed,
    events_of,
    failures,
    held,
    pass_time,
    post,
    reopen,
    rows,
    serving,
)

from retryapp.core import settled
from retryapp.core.control import Verb
from retryapp.core.lifecycle import Commanded
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.lane import LaneLimits, LaneState
from retryapp.engine.partition import scheduler
from retryapp.ports import Event
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step


async def test_a_successor_begins_after_the_final_outcome_and_not_beside_an_orphan() -> None:
    """Other keys, and records without one, do not wait. A thread that goes on keeps its key, up to a minute."""
    async with serving(Gate(), "1s", concurrency=9, order=Order.KEY) as (orders, gate):
        for value, key in ((b"a1", b"a"), (b"a2", b"a"), (b"b1", b"b"), (b"n1", None), (b"n2", None)):
            await orders.send(value, key=key)
        assert gate.started == [b"a1", b"b1", b"n1", b"n2"]
        await gate.end(orders, b"a1")
        assert gate.started[4:] == [b"a2"]
        await gate.end_all(orders)

    hangs, goes_on = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def hang(value: bytes) -> None:
        seen.append(value)
        if value == b"1":
            hangs.set()
            goes_on.wait(20)
            raise Reject("too late")

    async with serving(hang, "1s", b"1", b"2", key=b"a", order=Order.KEY) as (orders, _):
        await orders.until(hangs.is_set)
        orphans, hung = orders.handler.orphans, list[str | None]()
        orphans.on_hung = lambda: hung.append(orphans.problem)
        await orders.advance(orders.handler.policy.timeout_ms + 1)
        assert not hung
        await orders.advance(60_000)
        assert seen == [b"1"], "its first attempt goes on, and its second and its successor wait"
        (problem,) = hung  # the worker is not ready, and ends now to be started again
        assert problem is not None
        assert "no later record of the same key or partition can begin: 1 run given up and going on" in problem
        goes_on.set()
        await orders.until(lambda: len(seen) == 3)
        assert seen == [b"1", b"1", b"2"]
        await orders.advance(60_000)
        assert (len(hung), orphans.problem) == (1, None)


async def test_behind_a_head_that_waits_records_are_held_and_the_offset_goes_on() -> None:
    """They run in order after it, each counted once; those that fail there are retried like any other."""
    async with serving(Gate(), "1s 1s", b"1", b"2", b"3", key=b"a", concurrency=9, order=Order.KEY) as (orders, gate):
        await gate.end(orders, b"1", BankDownError())
        await orders.send(b"4", key=b"a")
        assert (held(orders), sum(orders.waiting.values()), committed(orders)) == (3, 4, 4)
        assert len(orders.observer.of(Event.HELD)) == 3
        await orders.advance(1_000)
        assert gate.started == [b"1", b"1"]
        await gate.end(orders, b"1")
        assert gate.started == [b"1", b"1", b"2"]
        await gate.end(orders, b"2", BankDownError())
        await orders.advance(1_000)
        assert gate.started == [b"1", b"1", b"2", b"2"]
        await gate.end_all(orders)
        assert gate.done == [b"1", b"2", b"3", b"4"]


async def test_a_head_that_runs_has_its_followers_in_the_window() -> None:
    """No row is written for them, and the offset waits."""
    async with serving(Gate(), "1s", concurrency=9, order=Order.KEY) as (orders, gate):
        await orders.send(*(b"%02d" % n for n in range(20)), key=b"a")
        assert (gate.started, orders.waiting, committed(orders)) == ([b"00"], {}, 0)


@pytest.mark.parametrize("lost", [False, True])
async def test_the_next_session_finds_the_heads(lost: bool) -> None:
    """Of the same worker, or of another: a head that waits goes on waiting, and a held one without head runs."""
    gate = Gate()
    transport = MemoryLaneTransport()
    async with MemoryPartition(gate, "1s", order=Order.KEY, concurrency=9, transport=transport) as orders:
        await orders.send(b"1", b"2", b"3", key=b"a")
        await gate.end(orders, b"1", BankDownError())
        await orders.advance(1_000)
        await gate.end(orders, b"1")
        assert gate.started == [b"1", b"1", b"2"]
        if not lost:
            await reopen(orders)
            assert gate.started == [b"1", b"1", b"2", b"2"]
            await gate.end_all(orders)
    if lost:
        async with serving(Gate(), "1s", order=Order.KEY, transport=transport) as (orders, gate):
            await orders.advance(100)
            assert gate.started == [b"2"]
            await orders.send(b"4", key=b"a")
            assert gate.started == [b"2"]
            await gate.end_all(orders)
            assert gate.started == [b"2", b"3", b"4"]


async def test_a_partition_in_order_waits_in_the_window() -> None:
    """Nothing is held in rows, whatever the keys; room for more ends with the window."""
    async with serving(Gate(), "1s", order=Order.PARTITION, concurrency=9, max_in_flight=9) as (orders, gate):
        for n in range(20):
            await orders.send(b"%02d" % n, key=b"%d" % n)
        assert (orders.engine.running, orders.engine.in_flight) == (1, 9)
        await gate.end(orders, b"00", BankDownError())
        assert (gate.started, held(orders), sum(orders.waiting.values())) == ([b"00"], 0, 1)
        assert orders.engine.running == 0
        assert orders.engine.session is not None
        assert len(orders.engine.session.window) == 9
        assert orders.engine.blocked == "later records wait for offset 0"
        await gate.end_all(orders)
        assert gate.done == [b"%02d" % n for n in range(20)]


async def test_behind_a_refused_turn_everything_waits() -> None:
    """Also what belongs to other keys, and what could go ahead of the offset."""
    async with serving(Gate(), "1s", order=Order.KEY, concurrency=9) as (orders, gate):
        refusing = Refusing(orders.transport, b"bad")
        await orders.send(b"bad", key=b"a")
        await gate.end(orders, b"bad", Reject("wrong"))
        assert orders.lane.refusal is not None
        await orders.send(b"1", key=b"b")
        gate.let_all()
        await orders.advance(1)
        assert committed(orders) == 0
        refusing.prefixes = ()
        await orders.advance(1_000)
        await orders.advance(1_000)
        assert (committed(orders), len(orders.dead_letters)) == (2, 1)


async def test_rows_of_a_handler_without_an_order_are_claimed_in_order_once_it_has_one() -> None:
    """Two of a key are due; the second one waits for the end of the first. And back: held rows run at once."""
    gate = Gate()
    transport = MemoryLaneTransport()
    async with serving(gate, "1s", b"1", b"2", b"3", key=b"a", concurrency=9, transport=transport) as (orders, _):
        for value in (b"2", b"1", b"3"):
            gate.let(value, BankDownError())
            await orders.advance(10)
    async with serving(Gate(), "1s", concurrency=9, order=Order.KEY, transport=transport) as (orders, gate):
        await orders.send(b"4", key=b"a")
        await orders.advance(5_000)
        assert (gate.started, held(orders)) == ([b"1"], 1)
        assert {row.held for row in rows(orders)} == {True, False}
    async with serving(Gate(), "1s", concurrency=9, transport=transport) as (orders, gate):
        await orders.advance(1_000)
        assert set(gate.started) == {b"1", b"2", b"3", b"4"}


async def test_a_held_row_is_before_a_later_row_of_a_handler_without_an_order() -> None:
    """The second record of a key had no outcome when the worker ended; the first and the third one have rows."""
    gate = Gate()
    transport = MemoryLaneTransport()
    async with serving(gate, "1s*5", b"1", b"2", b"3", key=b"a", concurrency=9, transport=transport) as (orders, _):
        gate.let(b"1", BankDownError())
        gate.let(b"3", BankDownError())
        await pass_time(orders, 900, 100)
    async with serving(Gate(), "1s*5", concurrency=9, order=Order.KEY, transport=transport) as (orders, gate):
        await orders.advance(5_000)
        await gate.end(orders, b"1", BankDownError())
        assert (gate.started, held(orders)) == ([b"1"], 1)
        await gate.end_all(orders)
        assert gate.started == [b"1", b"1", b"2", b"3"]


async def test_a_head_whose_row_is_not_written_yet_is_claimed_once_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction of the second held row hangs while the first one ends; that fails no lane."""
    monkeypatch.setattr(scheduler, "CLAIM_LIMIT", 1)
    async with serving(Gate(), "1s", b"1", b"2", key=b"a", concurrency=9, order=Order.KEY) as (orders, gate):
        await gate.end(orders, b"1", BankDownError())
        commits = orders.transport.pause(Step.COMMIT)
        await orders.send(b"3", key=b"a")
        await orders.advance(1_000)
        gate.let(b"1")
        session = orders.engine.session
        assert session is not None
        assert session.sequences is not None
        for _ in range(40):
            await asyncio.sleep(0)
            session.sequences.advance(b"a")  # as each record that comes in does
        await orders.settle()
        assert gate.started == [b"1", b"1", b"2"]
        await gate.end(orders, b"2")
        session.scheduler.changed(0)  # another row is due
        await orders.settle()
        assert (gate.started[3:], orders.observer.of(Event.LANE_FAILED)) == ([], [])
        commits.set()
        await orders.settle()
        assert gate.started[3:] == [b"3"]


async def test_what_goes_ahead_of_the_offset_goes_in_order() -> None:
    """A kill between the turns of two records of a key leaves the first one settled, not the second."""
    gate, transport = Gate(), MemoryLaneTransport()
    few = LaneLimits(turns=1)
    async with MemoryPartition(gate, "1s", order=Order.KEY, concurrency=9, limits=few, transport=transport) as orders:
        await orders.send(b"hung", key=b"b")
        await orders.send(b"1", b"2", key=b"a")
        await gate.end(orders, b"1")
        await gate.end(orders, b"2", Reject("wrong"))
        first, second = transport.pause(Step.COMMIT), transport.pause(Step.COMMIT)
        await orders.advance(150)
        await orders.advance(150)
        assert first.reached
        first.set()
        await orders.settle()
        await orders.advance(300)
        assert second.reached
    async with serving(Gate(), "1s", order=Order.KEY, concurrency=9, transport=transport) as (orders, gate):
        await orders.advance(1_000)
        assert gate.started == [b"hung", b"2"]


async def test_nothing_begins_behind_a_first_delivery_that_may_not() -> None:
    """When it was to begin, the group had not answered for too long; a moment later it does."""
    gate = Gate()
    orders = MemoryPartition(gate, "1s", order=Order.KEY)
    answers: list[bool] = []
    object.__setattr__(orders.engine.context, "lapsed", lambda: bool(answers and answers.pop()))
    async with orders:
        answers.append(True)
        for value in (b"1", b"2"):
            orders.transport.append(MAIN, b"a", value)
        await orders.settle()
        await orders.advance(100)
        assert (gate.started, answers) == ([b"1"], [])


async def test_a_run_that_goes_on_over_two_sessions_keeps_its_key_until_it_ends() -> None:
    """It does not heed its cancellation; and then the record, which has no outcome, runs again."""
    async with serving(Stubborn(), "1s", b"1", b"fine", key=b"a", order=Order.KEY) as (orders, handler):
        await reopen(orders)
        await reopen(orders)
        await orders.advance(200)
        assert (orders.lane.state, orders.lane.session, handler.started) == (LaneState.OPEN, 3, [b"1"])
        handler.over.set()
        await pass_time(orders, 3_000, 1_000)
        assert handler.started == [b"1", b"1", b"1", b"fine"]


async def test_a_command_about_a_record_whose_outcome_a_topic_refuses_says_so() -> None:
    """It is no record that a newer one has replaced."""
    async with serving(Gate(), "1s", b"a", key=b"k", order=Order.KEY) as (orders, gate):
        await gate.end(orders, b"a", BankDownError())
        await orders.advance(1_000)
        refusing = Refusing(orders.transport, b"a")
        await gate.end(orders, b"a", BankDownError())
        assert refusing.tries
        post(orders, about("h", Verb.HOLD, 0))
        await orders.settle()
        refusing.prefixes = ()
        await orders.to_rest()
    (told,) = (event for event in events_of(orders, Commanded) if event.command == "h")
    assert told.refused == "running", told.text


async def test_replays_behind_a_head_that_runs_keep_their_order() -> None:
    """Both come before the head in the topic, and neither before the other."""
    goes_on, started, rejected = asyncio.Event(), list[bytes](), {b"0", b"1"}

    async def handler(value: bytes) -> None:
        started.append(value)
        if value in rejected:
            rejected.remove(value)
            raise Reject("not yet")
        if started.count(b"2") == 1 and value == b"2":
            raise BankDownError
        if value == b"2":
            await goes_on.wait()

    async with serving(handler, "1s", b"0", b"1", b"2", key=b"a", order=Order.KEY, concurrency=9) as (orders, _):
        await orders.advance(1_000)
        assert started == [b"0", b"1", b"2", b"2"]
        for offset in (0, 1):
            assert (await orders.command("replay", offset))["refused"] is None
        goes_on.set()
        await orders.to_rest()
        assert started[4:] == [b"0", b"1"]


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_head_that_waits_again_lets_earlier_ones_go_that_were_replayed_while_it_ran(failures: int) -> None:
    """They come in their places, as at the next opening."""
    async with serving(Gate(), "1s 1h", b"0", b"1", b"2", key=b"a", concurrency=9, order=Order.KEY) as (orders, gate):
        for value in (b"0", b"1"):
            await gate.end(orders, value, Reject("wrong"))
        for _ in range(failures - 1):
            await gate.end(orders, b"2", BankDownError())
            await orders.advance(1_000)
        before = len(gate.started)
        assert gate.started[-1] == b"2"
        for offset in (1, 0):
            assert (await orders.command("replay", offset))["refused"] is None
        await gate.end(orders, b"2", BankDownError())
        await orders.advance(500)
        await gate.end(orders, b"0")
        await gate.end_all(orders)
        assert gate.started[before:] == [b"0", b"1", b"2"]


async def test_a_replay_ends_before_the_row_of_a_later_record_is_written() -> None:
    """That one has failed, and its outcome waits for the offset: it is no head that the table lacks."""
    async with serving(Gate(), "1m", b"0", key=b"a", concurrency=9, order=Order.KEY) as (orders, gate):
        await gate.end(orders, b"0", Reject("wrong"))
        await orders.advance(500)
        await orders.send(b"hangs", key=b"b")
        await orders.send(b"2", key=b"a")
        await gate.end(orders, b"2", BankDownError())
        post(orders, about("back", Verb.REPLAY, 0))
        await orders.settle()
        assert gate.started == [b"0", b"hangs", b"2", b"0"]
        await gate.end(orders, b"0")
        await orders.advance(1)
        assert failures(orders) == []
        gate.let_all()
        await orders.advance(60_000)
        assert gate.done[1:] == [b"hangs", b"2"]


async def test_a_replay_goes_before_a_row_behind_a_head_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """That row has not begun: it waits until the outcome of the head is handed over."""
    async with serving(Gate(), "1s", b"0", key=b"a", concurrency=9) as (orders, gate):
        await gate.end(orders, b"0", Reject("wrong"))
        for value, key, error in ((b"1", b"b", None), (b"2", b"a", None), (b"3", b"a", BankDownError())):
            await orders.send(value, key=key)
            await gate.end(orders, value, error)
        await orders.advance(500)
        assert committed(orders) == 4
    orders.transport.broker.notes[MAIN], orders.transport.offsets[MAIN] = "", 1
    monkeypatch.setattr(settled, "MAX_PAYLOAD_BYTES", 0)  # no outcome goes ahead of the offset
    transport = orders.transport
    async with serving(Gate(), "1s", transport=transport, concurrency=9, order=Order.KEY) as (orders, gate):
        await gate.end(orders, b"2")
        await orders.advance(2_000)
        assert gate.started == [b"1", b"2"]
        assert (await orders.command("replay", 0))["refused"] is None
        await orders.advance(1_000)
        await gate.end_all(orders)
        assert gate.started == [b"1", b"2", b"0", b"3"]


@pytest.mark.parametrize("verb", ["hold", "reschedule"])
async def test_a_held_row_before_one_that_a_command_has_moved_runs(verb: str) -> None:
    """The handler had no order when the later record failed; the earlier one is given up over an opening."""
    async with serving(Gate(), "1s", b"1", b"3", key=b"a", concurrency=9) as (orders, gate):
        await gate.end(orders, b"3", BankDownError())
        await pass_time(orders, 600, 300)
        assert (orders.waiting, committed(orders)) == ({"1s": 1}, 0)
    transport = orders.transport
    transport.broker.notes[MAIN] = ""
    async with serving(Stubborn(), "1s", order=Order.KEY, concurrency=9, transport=transport) as (orders, handler):
        await reopen(orders)
        await orders.advance(200)
        more = {"hold_ms": 5_000} if verb == "hold" else {"due_at_ms": orders.clock.wall_ms() + 5_000}
        assert (await orders.command(verb, 1, **more))["refused"] is None
        await orders.advance(200)
        handler.over.set()
        await pass_time(orders, 20_000, 2_000)
        assert handler.started[:3] == [b"1", b"1", b"1"]

"""The main topic has lost its end, and has other records at the offsets of those that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import DLQ, MAIN, BankDownError, Gate, Refusing, failures, lose_the_end, pass_time, serving
from suspected import found
from test_beyond import noted
from test_redelivery import copies
from test_set_back import lose_end

from retryapp.core.errors import UnreadableTopicError
from retryapp.core.holding import Holding
from retryapp.core.record import Damage
from retryapp.core.verdicts import Reject
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane import recovery
from retryapp.engine.partition.beyond import LOOK_S
from retryapp.testing import MemoryLaneTransport, Step

POLICY = "1m*3"


async def grown(
    lost: dict[bytes, bytes], now: dict[bytes, bytes], *, order: Order = Order.NONE, **options: Any
) -> MemoryLaneTransport:
    """Return what a worker has left that has failed records; the topic has others in their places. Keys by values."""
    async with serving(Gate(), POLICY, concurrency=9, order=order, **options) as (orders, gate):
        for value, key in lost.items():
            await orders.send(value, key=key)
            await gate.end(orders, value, BankDownError())
        await orders.advance(500)
        assert orders.waiting == {"1m": len(lost)}
        transport = orders.transport
    lose_end(transport)
    for value, key in now.items():
        transport.append(MAIN, key, value)
    return transport


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("order", Order)
async def test_a_record_begins_once_the_one_in_its_place_has_ended(order: Order, *, fails: bool) -> None:
    """Both have one name in the table: the failure of the new one would replace the row."""
    transport = await grown({b"old": b"a"}, {b"new": b"b"})
    async with serving(Gate(), POLICY, concurrency=3, order=order, transport=transport) as (orders, gate):
        assert (gate.started, orders.waiting) == ([], {"1m": 1})
        await orders.advance(60_000)
        await gate.end(orders, b"old", BankDownError())
        assert (gate.started, orders.waiting, transport.offsets[MAIN]) == ([b"old"], {"1m": 1}, 0)
        await orders.advance(60_000)
        await gate.end(orders, b"old")
        assert (gate.started, orders.waiting) == ([b"old", b"old", b"new"], {})
        await gate.end(orders, b"new", BankDownError() if fails else None)
        await orders.advance(500)
        assert (orders.waiting, transport.offsets[MAIN]) == ({"1m": 1} if fails else {}, 1)
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert (sorted(gate.done), orders.waiting, failures(orders)) == ([b"new", b"old"], {}, [])


@pytest.mark.parametrize("order", Order)
async def test_a_kill_loses_neither(order: Order) -> None:
    """While the new one waits, no offset has passed it; and it is read again."""
    transport = await grown({b"old": b"a"}, {b"new": b"b", b"later": b"c"})
    async with serving(Gate(), POLICY, concurrency=3, order=order, transport=transport) as (orders, gate):
        if order is not Order.PARTITION:
            await gate.end(orders, b"later", BankDownError())
            await pass_time(orders, 500, round(LOOK_S * 1000))
        assert (transport.offsets[MAIN], b"new" in gate.started) == (0, False)
        assert noted(transport) == ({} if order is Order.PARTITION else {1: False})
    async with serving(Gate(), POLICY, concurrency=3, order=order, transport=transport) as (orders, gate):
        assert gate.started == []
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert (sorted(gate.done), orders.waiting, failures(orders)) == ([b"later", b"new", b"old"], {}, [])
        assert transport.offsets[MAIN] == 2


async def test_records_of_its_key_wait_behind_it_and_others_do_not() -> None:
    """Its sequence keeps its order."""
    transport = await grown({b"old": b"a"}, {b"first": b"b", b"second": b"b", b"other": b"c"})
    async with serving(Gate(), POLICY, concurrency=3, order=Order.KEY, transport=transport) as (orders, gate):
        assert gate.started == [b"other"]
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert gate.started == [b"other", b"old", b"first", b"second"]


async def test_what_waits_behind_a_head_gets_no_row_in_the_place_of_another() -> None:
    """A held row has the name of its record, too."""
    transport = await grown({b"one": b"a", b"two": b"b"}, {b"head": b"c", b"second": b"c", b"third": b"c"})
    async with serving(Gate(), POLICY, concurrency=3, order=Order.KEY, transport=transport) as (orders, gate):
        await orders.advance(60_000)
        await gate.end(orders, b"one")
        await gate.end(orders, b"head", BankDownError())
        await orders.advance(500)
        assert (orders.waiting, transport.offsets[MAIN]) == ({"1m": 2}, 1)
        await gate.end(orders, b"two")
        await orders.advance(500)
        assert (orders.waiting, transport.offsets[MAIN]) == ({"1m": 1, "held": 2}, 3)
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert gate.done == [b"one", b"two", b"head", b"second", b"third"]


async def test_a_stop_of_another_sequence_stays_until_somebody_decides() -> None:
    """A row in its place would let that sequence go."""
    options: Any = {"order": Order.KEY, "holding": Holding(on_dead="hold"), "concurrency": 3}
    async with serving(Gate(), POLICY, b"dead", key=b"a", **options) as (orders, gate):
        await gate.end(orders, b"dead", Reject())
        await orders.advance(500)
        transport = orders.transport
    lose_end(transport)
    async with serving(Gate(), POLICY, b"new", key=b"b", transport=transport, **options) as (orders, gate):
        await orders.send(b"behind", key=b"a")
        await pass_time(orders, 500, 100)
        assert (gate.started, orders.waiting) == ([], {"stopped": 1, "held": 1})
        assert (await orders.command("release", 0))["refused"] is None
        gate.let_all()
        await pass_time(orders, 2_000, 500)
        assert (sorted(gate.done), orders.waiting) == ([b"behind", b"new"], {})


async def test_a_newer_one_of_its_key_does_not_wait() -> None:
    """With `latest` its outcome removes the row before it writes one of its own."""
    transport = await grown({b"old": b"a"}, {b"new": b"a"})
    async with serving(Gate(), POLICY, concurrency=3, order=Order.LATEST, transport=transport) as (orders, gate):
        await gate.end(orders, b"new", BankDownError())
        await orders.advance(500)
        assert (orders.waiting, transport.offsets[MAIN]) == ({"1m": 1}, 1)
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert gate.done == [b"new"]


async def test_newer_ones_in_each_others_places_do_not_wait_for_ever() -> None:
    """Each replaces the row that is in the place of the other, so neither row runs."""
    transport = await grown({b"one": b"a", b"two": b"b"}, {})
    async with serving(Gate(), POLICY, concurrency=3, order=Order.LATEST, transport=transport) as (orders, gate):
        await orders.send(b"newer two", key=b"b")
        await orders.send(b"newer one", key=b"a")
        for value in (b"newer two", b"newer one"):
            await gate.end(orders, value, BankDownError())
        await orders.advance(500)
        assert (orders.waiting, transport.offsets[MAIN]) == ({"1m": 2}, 2)
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert sorted(gate.done) == [b"newer one", b"newer two"]


@pytest.mark.parametrize("marker", [True, False])
async def test_a_newer_one_is_not_replaced_by_a_lost_one_of_a_later_offset(*, marker: bool) -> None:
    """With `latest` that is older whatever its offset, also where a transaction has its end there."""
    options: Any = {"order": Order.LATEST, "concurrency": 3}
    transport = await grown(
        {b"one": b"b", b"old": b"a"}, {b"new": b"a", b"other": b"c", b"last": b"d"}, order=Order.LATEST
    )
    if marker:
        del transport.broker.logs[MAIN].entries[1]
    async with serving(Gate(), POLICY, transport=transport, **options) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert sorted(gate.done) == sorted([b"one", b"new", b"last"] + [b"other"] * (not marker))
        assert (orders.waiting, transport.offsets[MAIN], failures(orders)) == ({}, 3, [])


async def test_a_later_one_that_is_still_there_replaces_an_older_one() -> None:
    """Its offset was set back, and the topic has lost what came after it."""
    options: Any = {"order": Order.LATEST, "concurrency": 9}
    async with serving(Gate(), POLICY, **options) as (orders, gate):
        for value, key in {b"one": b"a", b"two": b"b", b"older": b"c", b"newer": b"c", b"lost": b"d"}.items():
            await orders.send(value, key=key)
            await gate.end(orders, value, BankDownError())
        await orders.advance(500)
        transport = orders.transport
    lose_the_end(transport, 4)
    transport.clock.advance(1)
    transport.append(MAIN, b"e", b"new")
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 0
    async with serving(Gate(), POLICY, transport=transport, **options) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert sorted(gate.done) == [b"lost", b"new", b"newer", b"one", b"two"]


async def test_no_mark_of_suspects_moves_the_offset_past_it() -> None:
    """Those after it run in groups; a kill after that loses it no more than before."""
    names = [b"new", b"a", b"b", b"c"]
    transport = await grown({b"old": b"k"}, {})
    suspected = found("r1:old", *names)
    transport.broker.notes[MAIN] = suspected.broker.notes[MAIN]
    for name in names:
        transport.append(MAIN, name, name)
    async with serving(Gate(), POLICY, concurrency=4, transport=transport) as (orders, gate):
        gate.let_all()
        await orders.advance(2_000)
        assert (gate.done, transport.offsets[MAIN]) == (names[1:], 0)
        await pass_time(orders, 70_000, 10_000)
        assert (gate.done[3:], transport.offsets[MAIN]) == ([b"old", b"new"], 4)


async def test_a_copy_on_the_main_topic_is_not_waited_for_by_what_waits_for_its_row() -> None:
    """The window would be full before that is read."""
    transport = await grown({b"old": b"a"}, {b"new": b"b"}, through_main=True)
    options: Any = {"through_main": True, "max_in_flight": 2, "transport": transport}
    async with serving(Gate(), POLICY, **options) as (orders, gate):
        gate.let_all()
        await orders.send(*(b"%d" % n for n in range(4)))
        await pass_time(orders, 65_000, 5_000)
        assert sorted(gate.done) == [b"0", b"1", b"2", b"3", b"new", b"old"]


async def test_what_has_waited_for_a_row_comes_back_through_the_main_topic() -> None:
    """Its row has the name of that one: its retries went without copies for the rest of the session."""
    transport = await grown({b"old": b"a"}, {b"new": b"b"}, through_main=True)
    async with serving(Gate(), POLICY, through_main=True, transport=transport) as (orders, gate):
        await orders.advance(60_000)
        await gate.end(orders, b"old")
        await gate.end(orders, b"new", BankDownError())
        assert copies(orders) == []
        await orders.advance(60_500)
        assert [each.value for each in copies(orders)] == [b"new"]
        await gate.end(orders, b"new")
        await orders.advance(500)
        assert (gate.done, orders.waiting, failures(orders)) == ([b"old", b"new"], {}, [])


async def test_it_is_said_and_a_cancel_lets_it_go(caplog: pytest.LogCaptureFixture) -> None:
    """The row may be due in days, and the offset waits for that."""
    transport = await grown({b"old": b"a"}, {b"new": b"b"})
    async with serving(Gate(), POLICY, transport=transport) as (orders, gate):
        blocked = [orders.engine.blocked]
        [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert said.startswith(
            "orders[0]@0 waits for another record of that offset, which the topic has lost: both are app/orders@"
        )
        assert (await orders.command("cancel", 0))["refused"] is None
        blocked.append(orders.engine.blocked)
        assert blocked == ["offset 0 waits for another record of that offset, which the topic has lost", None]
        assert gate.started == [b"new"]
        await gate.end(orders, b"new", Reject())
        assert [letter.value for letter in orders.records(DLQ)] == [b"old", b"new"]


async def ahead(order: Order = Order.NONE, *, lost: bool = True) -> MemoryLaneTransport:
    """Return what a worker has left that has failed a record behind one that hangs; if `lost`, another is there."""
    async with serving(Gate(), POLICY, b"hangs", key=b"z", concurrency=3, order=order) as (orders, gate):
        await orders.send(b"old", key=b"a")
        await gate.end(orders, b"old", BankDownError())
        await pass_time(orders, 500, 100)
        transport = orders.transport
    assert noted(transport) == {1: False}
    if lost:
        replace_the_end(transport)
    return transport


def replace_the_end(transport: MemoryLaneTransport, *, key: bytes = b"b") -> None:
    """Have the main topic lose all but its first record, and get another one."""
    lose_the_end(transport, 1)
    transport.clock.advance(1)
    transport.append(MAIN, key, b"new")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("order", [Order.NONE, Order.KEY, Order.LATEST])
async def test_what_is_noted_as_settled_is_not_the_new_one(order: Order, after: int, *, durable: bool) -> None:
    """The row of the other one says so, and its outcome is not durable before the note is mended."""
    transport = await ahead(order)
    dying = transport.pause(Step.COMMIT, after=after, durable=durable)
    async with serving(Gate(), POLICY, concurrency=3, order=order, transport=transport) as (orders, gate):
        await pass_time(orders, 70_000, 10_000)
        assert b"new" not in gate.started
        if b"old" in gate.running:
            await gate.end(orders, b"old")
        await pass_time(orders, 500, 100)
        assert dying.reached
    async with serving(Gate(), POLICY, concurrency=3, order=order, transport=transport) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert gate.done.count(b"new") == 1
        assert (orders.waiting, transport.offsets[MAIN], failures(orders)) == ({}, 2, [])


async def test_what_is_noted_is_looked_at_before_its_row_ends() -> None:
    """The new record may be read after that, and nothing tells then that it is not the one of the note."""
    transport = await ahead()
    async with serving(Gate(), POLICY, max_in_flight=1, transport=transport) as (orders, gate):
        await orders.advance(60_000)
        for value in (b"old", b"hangs", b"new"):
            await gate.end(orders, value)
        await orders.advance(500)
        assert (gate.done, transport.offsets[MAIN], noted(transport)) == ([b"old", b"hangs", b"new"], 2, {})


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY, Order.LATEST])
async def test_what_is_lost_after_the_opening_is_not_settled_either(order: Order) -> None:
    """The window was full, so the record is not read before that."""
    transport = await ahead(order, lost=False)
    async with serving(Gate(), POLICY, max_in_flight=1, order=order, transport=transport) as (orders, gate):
        replace_the_end(transport)
        await gate.end(orders, b"hangs")
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert (sorted(gate.done), orders.waiting, failures(orders)) == ([b"hangs", b"new", b"old"], {}, [])
        assert (transport.offsets[MAIN], noted(transport)) == (2, {})


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY, Order.LATEST])
async def test_a_later_one_of_a_worker_that_has_lived_through_the_loss_hides_no_other(order: Order) -> None:
    """Its own record is there, and so it says nothing of those before it."""
    async with serving(Gate(), POLICY, b"hangs", key=b"z", concurrency=3, order=order) as (orders, gate):
        await orders.send(b"old", key=b"a")
        await gate.end(orders, b"old", BankDownError())
        await pass_time(orders, 500, 100)
        replace_the_end(orders.transport)
        await orders.send(b"later", key=b"c")
        await gate.end(orders, b"later", BankDownError())
        await pass_time(orders, 500, 100)
        transport = orders.transport
    assert noted(transport) == {1: False, 2: False}
    async with serving(Gate(), POLICY, concurrency=5, order=order, transport=transport) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert (sorted(gate.done), orders.waiting) == ([b"hangs", b"later", b"new", b"old"], {})


async def test_a_lost_one_of_an_earlier_life_replaces_none_although_a_later_one_is_there() -> None:
    """With `latest`: the worker has lived through the loss."""
    options: Any = {"order": Order.LATEST, "concurrency": 5}
    async with serving(Gate(), POLICY, b"hangs", key=b"z", **options) as (orders, gate):
        await orders.send(b"first", key=b"y")
        await gate.end(orders, b"first")
        await orders.send(b"old", key=b"a")
        await gate.end(orders, b"old", BankDownError())
        await pass_time(orders, 500, 100)
        transport = orders.transport
        replace_the_end(transport, key=b"a")
        transport.append(MAIN, b"x", b"other")
        await orders.send(b"later", key=b"c")
        await gate.end(orders, b"later", BankDownError())
        await pass_time(orders, 500, 100)
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 0
    async with serving(Gate(), POLICY, transport=transport, **options) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert sorted(gate.done) == [b"hangs", b"later", b"new", b"other"]


async def test_each_of_many_rows_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few together; where nothing is at the offset of one, the next lower one tells."""
    monkeypatch.setattr(recovery, "_TOGETHER", 2)
    async with serving(Gate(), POLICY, *(b"x" for _ in range(9))) as (orders, _):
        log = orders.transport.broker.logs[MAIN]
        times = {each.record.offset: b"%d" % each.record.timestamp_ms for each in log.entries}
        del log.entries[4:6]
        rows = [*{**times, 1: b"0", 3: b"0", 7: b"0"}.items()][::-1]
        assert await recovery.find_lost(orders.transport.reader, MAIN, rows) == {1, 3, 4, 5, 7}


async def test_what_cannot_be_read_hides_none_before_it() -> None:
    """The others are looked at without it."""
    async with serving(Gate(), POLICY, *(b"x" for _ in range(4))) as (orders, _):
        orders.transport.fail(Step.RECORDS, UnreadableTopicError(*MAIN, 2, "no codec"))
        rows = [(offset, b"0") for offset in (3, 2, 1, 0)]
        assert await recovery.find_lost(orders.transport.reader, MAIN, rows) == {0, 1}


async def test_an_opening_does_not_wait_for_what_does_not_come() -> None:
    """Large records of a slow broker took longer than an opening may, again and again."""
    transport = await ahead()
    hanging = transport.pause(Step.RECORDS)
    async with serving(Gate(), POLICY, concurrency=3, transport=transport) as (orders, gate):
        await pass_time(orders, 5_000, 100)
        assert (hanging.reached, orders.lane.last_error, gate.started) == (True, None, [b"hangs"])


async def test_a_damaged_record_is_not_taken_for_another_one() -> None:
    """It was sound when it failed, and does not tell its time any more."""
    transport = await ahead(lost=False)
    entries = transport.broker.logs[MAIN].entries
    damaged = replace(entries[1].record, value=b"", timestamp_ms=-1, damage=Damage(1, "a wrong checksum"))
    entries[1] = entries[1]._replace(record=damaged)
    async with serving(Gate(), POLICY, concurrency=3, transport=transport) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert (sorted(gate.done), orders.dead_letters, transport.offsets[MAIN]) == ([b"hangs", b"old"], [], 2)


async def test_what_cannot_be_read_now_keeps_no_lane_closed() -> None:
    """The partition stops at that record, by its name, once all before is done."""
    transport = await ahead()
    transport.fail("records", UnreadableTopicError(*MAIN, 1, "no codec"))  # type: ignore[arg-type]
    async with serving(Gate(), POLICY, concurrency=3, transport=transport) as (orders, gate):
        assert (orders.lane.last_error, gate.started) == (None, [b"hangs"])


async def test_the_one_before_is_not_replayed_while_the_new_one_runs() -> None:
    """The failure of the new one would replace its row."""
    transport = await ahead()
    async with serving(Gate(), POLICY, concurrency=3, transport=transport) as (orders, gate):
        assert (await orders.command("cancel", 1))["refused"] is None
        assert gate.started == [b"hangs", b"new"]
        assert (await orders.command("replay", 1))["refused"] == "running"
        await gate.end_all(orders)
        assert (await orders.command("replay", 1))["refused"] is None
        await orders.to_rest()
        assert gate.done == [b"hangs", b"new", b"old"]


async def test_a_replaced_one_does_not_wait() -> None:
    """With `latest` it has ended as the next one of its key came, although the row in its place has not."""
    transport = await grown({b"busy": b"c", b"old": b"a"}, {}, order=Order.LATEST)
    async with serving(Gate(), POLICY, concurrency=3, order=Order.LATEST, transport=transport) as (orders, gate):
        await orders.advance(60_000)
        await orders.send(b"other", key=b"b")
        await orders.send(b"new", b"newest", key=b"c")
        blocked = [orders.engine.blocked]
        await gate.end(orders, b"busy")
        await pass_time(orders, 500, 100)
        blocked.append(orders.engine.blocked)
        assert blocked == ["offset 0 waits for another record of that offset, which the topic has lost", None]
        assert gate.started == [b"busy", b"old", b"newest", b"other"]


async def test_none_runs_after_the_newer_one_that_has_replaced_it() -> None:
    """While the row of another one is in its place, no note can say that it is settled: both wait for the offset."""
    options: Any = {"order": Order.LATEST, "concurrency": 9}
    async with serving(Gate(), POLICY, b"hangs", key=b"z", **options) as (orders, gate):
        await orders.send(b"gone", key=b"a")
        await orders.send(b"old", key=b"b")
        await gate.end(orders, b"old", BankDownError())
        await pass_time(orders, 500, 100)
        transport = orders.transport
    lose_the_end(transport, 1)
    transport.clock.advance(1)
    for value in (b"first", b"second", b"newest"):
        transport.append(MAIN, b"a", value)
    async with serving(Gate(), POLICY, transport=transport, **options) as (orders, gate):
        await gate.end(orders, b"first")
        await gate.end(orders, b"newest")
        await pass_time(orders, 500, 100)
        assert (gate.done, noted(transport), transport.offsets[MAIN]) == ([b"first", b"newest"], {1: True}, 0)
    async with serving(Gate(), POLICY, transport=transport, **options) as (orders, gate):
        gate.let_all()
        await pass_time(orders, 120_000, 10_000)
        assert gate.done == [b"hangs", b"old", b"second", b"newest"]
        assert (orders.waiting, transport.offsets[MAIN], failures(orders)) == ({}, 4, [])


async def test_a_refusal_does_not_bring_back_what_was_noted_of_a_lost_record() -> None:
    """It undoes what its transaction has noted: a new record that came in meanwhile would pass for settled."""
    async with serving(Gate(), POLICY, b"hangs", concurrency=3) as (orders, gate):
        for value in (b"old", b"bad"):
            await orders.send(value)
            await gate.end(orders, value, BankDownError())
        await pass_time(orders, 500, 100)
        transport = orders.transport
    lose_the_end(transport, 1)
    transport.clock.advance(1)
    transport.append(MAIN, None, b"new")
    async with serving(Gate(), POLICY, concurrency=1, max_in_flight=1, transport=transport) as (orders, gate):
        await orders.advance(60_000)
        await gate.end(orders, b"old", BankDownError())
        Refusing(transport, b"bad")
        waits = transport.pause("produce")  # type: ignore[arg-type]
        await gate.end(orders, b"bad", Reject())
        await gate.end(orders, b"hangs")
        assert waits.reached
        waits.set()
        await pass_time(orders, 500, 100)
        assert (orders.lane.refusal is None, transport.offsets[MAIN], noted(transport)) == (False, 1, {})

"""Records that are settled beyond the offset, while one before them runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import DLQ, EVENTS, MAIN, RETRY, BankDownError, Gate, offsets, pass_time, reopen, serving
from test_lane_refused import Refusing

from retryapp.core import settled
from retryapp.core.deduplicate import Deduplicate
from retryapp.core.marks import parse_tally, split_note
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin
from retryapp.core.settled import decode_settled
from retryapp.core.verdicts import Reject, Skip
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.lane import LaneLimits
from retryapp.engine.partition.beyond import LOOK_S
from retryapp.ports import Event, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step

LOOK_MS = round(LOOK_S * 1000)
HUNG = RetryPolicy("1s", timeout="30s")


def noted(transport: MemoryLaneTransport) -> dict[int, bool]:
    """Return what the committed offset says of the records beyond it."""
    site = transport.place
    origin = Origin(MAIN.topic, site.topic_id, MAIN.partition, transport.offsets[MAIN])
    return decode_settled(split_note(transport.broker.notes[MAIN]).settled, origin)


class Forgotten(dict[TopicPartition, int]):
    """Offsets of a group that has none."""

    def setdefault(self, _tp: TopicPartition, default: int = 0) -> int:
        return default


async def looks(orders: MemoryPartition, count: int = 3) -> None:
    """Let time pass for so many looks, and for the offsets' tick."""
    await orders.settle()
    for _ in range(count):
        await orders.advance(LOOK_MS)
    await orders.advance(250)


async def test_a_retry_behind_a_hung_record_is_on_time() -> None:
    """It waits for no one: its row, its copy and its next attempt come as if it were alone."""
    async with serving(Gate(), HUNG, b"hung", b"fails", b"fine", concurrency=2) as (orders, gate):
        await gate.end(orders, b"fails", BankDownError())
        await gate.end(orders, b"fine")
        began_ms = orders.clock.wall_ms()
        await orders.advance(LOOK_MS)
        assert orders.waiting == {}, "a short while they wait: the offset may soon pass them"
        await orders.advance(LOOK_MS)
        assert orders.waiting == {"1s": 1}
        assert offsets(orders.records(RETRY.topic)) == [1]
        await orders.advance(began_ms + 1_000 - orders.clock.wall_ms())
        assert sorted(gate.running) == [b"fails", b"hung"]
        await gate.end(orders, b"fails")
        assert len(orders.records(EVENTS)) == 1
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (0, {1: False, 2: True})
        firsts = [seen for seen in orders.observer.of(Event.SUCCEEDED) if seen.attempt == 1]
        assert [(seen.offset, seen.count) for seen in firsts] == [(2, 1)]


async def test_what_is_settled_does_not_run_again_in_the_next_life() -> None:
    """The hung one does; and each is counted once, when the offset has passed it."""
    async with serving(Gate(), HUNG, b"hung", b"fails", b"fine", b"late", concurrency=2) as (orders, gate):
        await gate.end(orders, b"fails", BankDownError())
        await gate.end(orders, b"fine")
        await looks(orders)
        transport = orders.transport
    async with serving(Gate(), HUNG, concurrency=2, transport=transport) as (orders, gate):
        assert gate.started == [b"hung", b"late"]
        assert (orders.waiting, orders.engine.in_flight) == ({"1s": 1}, 4)
        await gate.end(orders, b"hung")
        await orders.advance(250)
        assert transport.offsets[MAIN] == 3
        tally = parse_tally(split_note(transport.broker.notes[MAIN]).tally, 3)
        assert tally is not None
        assert (tally.received, tally.first_try_ok, tally.failed) == (3, 2, 1)
        assert noted(transport) == {}
        assert offsets(orders.records(RETRY.topic)) == [1]
        assert sum(seen.count for seen in orders.observer.of(Event.SUCCEEDED)) == 1, "the other was seen before"


async def test_the_note_ends_with_what_the_offset_has_passed() -> None:
    """In the same transaction: what it still names is beyond."""
    async with serving(Gate(), HUNG, b"a", b"b", b"c", b"d", concurrency=5) as (orders, gate):
        gate.let(b"b")
        gate.let(b"d", BankDownError())
        await looks(orders)
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (0, {1: True, 3: False})
        gate.let(b"a")
        await looks(orders, 0)
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (2, {3: False})
        gate.let(b"c")
        await looks(orders, 0)
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (4, {})
        assert split_note(orders.transport.broker.notes[MAIN]).settled == ""


async def test_records_that_end_soon_are_committed_as_before() -> None:
    """No note, no turn more: the offset passes them together."""
    async with serving(Gate(), "1s", b"a", b"b", b"c", concurrency=3) as (orders, gate):
        gate.let(b"c")
        gate.let(b"b", BankDownError())
        await orders.advance(LOOK_MS)
        gate.let(b"a")
        await looks(orders)
        assert orders.transport.offsets[MAIN] == 3
        assert [batch.settled for batch in orders.transport.batches if batch.settled] == []


@pytest.mark.parametrize("retry", ["while the first one runs", "after it"])
async def test_no_offset_passes_a_record_whose_outcome_a_topic_refuses(retry: str) -> None:
    """Its note is not durable either: a crash would lose it."""
    async with serving(Gate(), HUNG, concurrency=4) as (orders, gate):
        refusing = Refusing(orders.transport, b"bad")
        await orders.send(b"hung", b"bad", b"fine", b"fails")
        for value, error in ((b"bad", BankDownError()), (b"fine", None), (b"fails", BankDownError())):
            gate.let(value, error)
        await looks(orders)
        assert orders.lane.refusal is not None
        assert noted(orders.transport) == {2: True, 3: False}, "the others go past it"
        if retry == "after it":
            gate.let(b"hung")
            await looks(orders)
            assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (1, {2: True, 3: False})
        refusing.prefixes = ()
        await orders.advance(2_000)
        await looks(orders)
        assert orders.lane.refusal is None
        assert sorted(offsets(orders.records(RETRY.topic))) == [1, 3]
        passed = orders.transport.offsets[MAIN], noted(orders.transport)
        assert passed == ((4, {}) if retry == "after it" else (0, {1: False, 2: True, 3: False}))
        assert orders.lane.session == 1


async def test_two_refused_turns_are_passed_by_none() -> None:
    """The second stays unpassed once the first is through."""
    async with serving(Gate(), HUNG, concurrency=4) as (orders, gate):
        refusing = Refusing(orders.transport, b"bad", b"worse")
        await orders.send(b"hung", b"bad", b"fine", b"worse")
        for value in (b"bad", b"worse"):
            gate.let(value, BankDownError())
        gate.let(b"fine")
        await looks(orders)
        gate.let(b"hung")
        await looks(orders)
        refusing.prefixes = (b"worse",)
        await pass_time(orders, 8_000, 1_000)
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (3, {})
        assert offsets(orders.records(RETRY.topic)) == [1]
        refusing.prefixes = ()
        await pass_time(orders, 40_000, 1_000)
        assert orders.transport.offsets[MAIN] == 4


async def test_a_refused_turn_leaves_no_note_when_its_session_ends() -> None:
    """It runs again, the settled one does not."""
    async with serving(Gate(), HUNG, concurrency=3) as (orders, gate):
        Refusing(orders.transport, b"bad")
        await orders.send(b"hung", b"bad", b"fine")
        gate.let(b"bad", BankDownError())
        gate.let(b"fine")
        await looks(orders)
        await reopen(orders)
        assert gate.started[3:] == [b"hung", b"bad"]


async def test_a_commit_of_unknown_outcome_is_settled_by_reading_the_note() -> None:
    """Lost, the record runs again; durable, it does not."""
    for durable in (False, True):
        async with serving(Gate(), HUNG, b"hung", b"fails", concurrency=2) as (orders, gate):
            gate.let(b"fails", BankDownError())
            orders.transport.fail(Step.COMMIT, TimeoutError(), durable=durable)
            await looks(orders)
            await orders.advance(200)
            assert gate.started[2:] == [b"hung"] + [b"fails"] * (not durable)
            assert orders.waiting == ({"1s": 1} if durable else {})


async def test_a_drain_leaves_only_what_still_runs() -> None:
    """At its end nothing that is done waits for a hung record."""
    async with serving(Gate(), HUNG, b"hung", b"fails", concurrency=2) as (orders, gate):
        gate.let(b"fails", BankDownError())
        draining = asyncio.create_task(orders.finish(0.01))
        await orders.settle()
        await orders.advance(20)
        await orders.settle()
        await draining
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (0, {1: False})


@pytest.mark.parametrize(
    ("offset", "noted_beside", "again"),
    [(0, False, [b"a", b"b", b"c"]), (1, True, [b"b", b"c", b"d"])],
    ids=["an offset that was set by hand", "a note that was copied"],
)
async def test_an_offset_without_a_note_of_its_own_skips_nothing(
    offset: int, noted_beside: bool, again: list[bytes]
) -> None:
    """All records after it run again: rather twice than not at all."""
    async with serving(Gate(), HUNG, b"a", b"b", b"c", b"d", concurrency=3) as (orders, gate):
        gate.let(b"b")
        await looks(orders)
        transport = orders.transport
    transport.offsets[MAIN] = offset
    if not noted_beside:
        transport.broker.notes[MAIN] = ""
    async with serving(Gate(), HUNG, concurrency=3, transport=transport) as (_, gate):
        assert gate.started == again


async def test_offsets_that_are_forgotten_have_their_note_in_the_changelog() -> None:
    """Nothing runs again then either."""
    async with serving(Gate(), HUNG, b"hung", b"fails", concurrency=2) as (orders, gate):
        gate.let(b"fails", BankDownError())
        await looks(orders)
        transport = orders.transport
    transport.broker.committed, transport.broker.notes = Forgotten(), {}
    async with serving(Gate(), HUNG, concurrency=2, transport=transport) as (_, gate):
        assert gate.started == [b"hung"]
        assert noted(transport) == {1: False}, "and the group has it again"


async def test_outcomes_that_do_not_fit_into_the_note_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note stays below what a broker takes; the others go when the offset moves."""
    monkeypatch.setattr(settled, "MAX_PAYLOAD_BYTES", 3)
    async with serving(Gate(), HUNG, concurrency=8) as (orders, gate):
        values = [b"%d" % n for n in range(6)]
        await orders.send(b"hung", *values)
        for value in values:
            gate.let(value, BankDownError())
        await looks(orders)
        assert noted(orders.transport) == dict.fromkeys((1, 2, 3), False)
        gate.let(b"hung")
        await looks(orders)
        assert (orders.transport.offsets[MAIN], noted(orders.transport)) == (7, {})
        assert offsets(orders.records(RETRY.topic)) == [1, 2, 3, 4, 5, 6]


async def test_a_hung_record_stops_the_intake_at_the_bound() -> None:
    """What is settled beyond the offset counts until that has passed it: the note is bounded, too."""
    async with serving(Gate(), HUNG, b"hung", b"a", b"b", b"c", concurrency=2, max_in_flight=3) as (orders, gate):
        for value in (b"a", b"b"):
            gate.let(value)
            await looks(orders)
        assert (gate.started, orders.engine.room(MAIN)) == ([b"hung", b"a", b"b"], 0)
        gate.let(b"hung")
        await looks(orders)
        assert gate.started[3:] == [b"c"]


async def test_a_dead_letter_and_a_result_are_visible_before_the_hung_record_ends() -> None:
    """Each in one transaction with its note."""
    gate = Gate()

    async def handle(value: bytes, delivery: object) -> None:
        delivery.publish("results", value)  # type: ignore[attr-defined]
        await gate(value)

    async with serving(handle, HUNG, b"hung", b"dead", b"fine", concurrency=3) as (orders, _):
        gate.let(b"dead", Reject("no order"))
        gate.let(b"fine")
        await looks(orders)
        assert [record.value for record in orders.records(DLQ)] == [b"dead"]
        assert [record.value for record in orders.records("results", 0)] == [b"fine"]
        assert noted(orders.transport) == {1: False, 2: True}


async def test_an_event_is_known_as_seen_as_soon_as_its_first_record_is_settled() -> None:
    """With it, in one transaction. A duplicate from before that waits for the offset; in the next life it does not."""
    gate = Gate()
    options = {"deduplicate": Deduplicate("header:event-id", window="1h"), "concurrency": 3}

    async def send(orders: MemoryPartition, *values: bytes) -> None:
        for value in values:
            await orders.send(value, headers=(("event-id", value[:4]),))

    async with MemoryPartition(gate, HUNG, **options) as orders:
        await send(orders, b"hung", b"fine", b"fine again")
        gate.let(b"fine")
        await looks(orders)
        assert noted(orders.transport) == {1: True}
        assert len(orders.records("app.orders.seen.changelog")) == 1
    async with serving(Gate(), HUNG, transport=orders.transport, **options) as (orders, gate):
        await send(orders, b"fine at last")
        assert gate.started == [b"hung"]
        assert orders.records(EVENTS) == []
        await looks(orders)
        assert (noted(orders.transport), len(orders.records(EVENTS))) == ({1: True, 2: True, 3: True}, 2)
        gate.let(b"hung")
        await looks(orders)
        assert len(orders.records(EVENTS)) == 2
        assert len(orders.records("app.orders.seen.changelog")) == 2
        assert orders.transport.offsets[MAIN] == 4


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
async def test_a_kill_in_the_commit_of_a_skipped_record_loses_nothing_and_changes_no_order(
    order: Order, *, durable: bool
) -> None:
    """It goes ahead of the one that hangs, and the later one of its key goes with it or behind it."""
    options: dict[str, Any] = {"concurrency": 3, "order": order, "limits": LaneLimits(turns=1)}
    async with serving(Gate(), HUNG, b"hung", key=b"a", **options) as (orders, gate):
        transport = orders.transport
        await orders.send(b"skipped", b"later", key=b"b")
        await gate.end(orders, b"skipped", Skip("not ours"))
        await gate.end(orders, b"later")
        dying = transport.pause(Step.COMMIT, durable=durable)
        for _ in range(3):
            await orders.advance(LOOK_MS)
        assert dying.reached
    async with serving(Gate(), HUNG, transport=transport, **options) as (orders, gate):
        gate.let_all()
        await orders.to_rest()
        assert gate.done[0] == b"hung"
        assert gate.started == [b"hung", *([b"skipped"] * (not durable)), b"later"]
        assert transport.offsets[MAIN] == 3


async def test_a_suspect_does_not_take_with_it_what_was_settled() -> None:
    """After two lives that ended at the hung one, it runs alone; what is settled does not run at all."""
    async with serving(Gate(), HUNG, b"hung", b"fine", b"waits", concurrency=4) as (orders, gate):
        gate.let(b"fine")
        await looks(orders)
        transport = orders.transport
    started = []
    for _ in range(2):
        async with serving(Gate(), HUNG, concurrency=4, transport=transport) as (orders, gate):
            await orders.settle()
            started.append(gate.started)
            if len(started) == 2:
                gate.let_all()
                await looks(orders)
                assert (transport.offsets[MAIN], gate.started) == (3, [b"hung", b"waits"])
    assert started == [[b"hung", b"waits"], [b"hung", b"waits"]]


async def test_a_smaller_window_changes_nothing_of_what_is_settled() -> None:
    """It is taken in as far as there is room, and never runs."""
    async with serving(Gate(), HUNG, b"hung", b"a", b"b", b"c", b"d", concurrency=4) as (orders, gate):
        for value in (b"a", b"b", b"c"):
            gate.let(value)
        await looks(orders)
        transport = orders.transport
    async with serving(Gate(), HUNG, concurrency=2, max_in_flight=2, transport=transport) as (orders, gate):
        assert gate.started == [b"hung"]
        gate.let(b"hung")
        await looks(orders)
        assert (gate.started, transport.offsets[MAIN]) == ([b"hung", b"d"], 4)


async def test_a_settled_record_at_the_offset_itself_is_passed_at_once() -> None:
    """The worker died between two transactions: no run will end that would move the offset."""
    async with serving(Gate(), "1h", b"hung", b"fine", concurrency=2, limits=LaneLimits(turns=1)) as (orders, gate):
        gate.let(b"fine")
        await looks(orders)
        orders.transport.pause(Step.COMMIT, after=1)
        gate.let(b"hung", BankDownError())
        await looks(orders)
        transport = orders.transport
        assert (transport.offsets[MAIN], noted(transport)) == (1, {1: True})
    async with serving(Gate(), "1h", transport=transport) as (orders, gate):
        await looks(orders)
        assert (gate.started, transport.offsets[MAIN], orders.engine.in_flight) == ([], 2, 0)

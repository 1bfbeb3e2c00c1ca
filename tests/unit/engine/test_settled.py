"""Records that were settled beyond the offset: in the window, and in the next life, where the topic has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import MAIN, BankDownError, Gate, lose_the_end, make_record, serving
from test_beyond import HUNG, looks, noted

from retryapp.core.hops import Outgoing
from retryapp.core.marks import split_note
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Damage, Record
from retryapp.core.verdicts import Reject
from retryapp.engine.delivery.run import Outcome
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.beyond import Beyond, Settled, in_order
from retryapp.engine.partition.progress import OffsetWindow
from retryapp.ports import Event, Observation
from retryapp.testing import MemoryPartition

NEW = (b"new 2", b"new 3", b"new 4")


# -- the window --------------------------------------------------------------------------------------------------------


def test_what_could_not_be_read_waits_for_the_offset() -> None:
    """Read again it may be several records, and the note would name the first of them only."""
    damaged = (Observation(event=Event.DAMAGED, handler=MAIN.topic),)
    window: OffsetWindow[Outcome | Settled] = OffsetWindow()
    beyond = Beyond(MAIN, 5, {})
    for offset in (5, 6, 8, 9):
        window.add(offset)
    window.finish(6, Turn(source=MAIN, next_offset=8, observations=damaged))
    window.finish(8, 9)
    window.finish(9, Turn(source=MAIN, next_offset=10, skipped=True, provisional=True))
    (turn,) = beyond.turns(window)
    assert (turn.beyond, turn.floor, turn.moves_to, window.waiting) == ({8: True}, 8, 0, 2)
    window.finish(5, 6)
    assert [turn.next_offset for turn in in_order(MAIN, window.release())] == [6, 8, 9, 10]
    assert window.waiting == 0


@pytest.mark.parametrize(
    ("first", "ahead"),
    [
        ({"skipped": True}, [6, 7]),
        ({"skipped": True, "settles": 0}, [7]),
        ({"skipped": True, "provisional": True}, []),
        ({"observations": (Observation(event=Event.DAMAGED, handler=MAIN.topic),)}, []),
    ],
    ids=["skipped", "a copy", "a duplicate of what runs", "unreadable"],
)
def test_in_an_order_nothing_goes_ahead_of_what_may_run_again(first: dict[str, Any], ahead: list[int]) -> None:
    """A copy does not. What was skipped goes ahead itself, as any other outcome: read later, it may be no duplicate."""
    window: OffsetWindow[Outcome | Settled] = OffsetWindow()
    for offset in (5, 6, 7):
        window.add(offset)
    window.finish(6, Turn(source=MAIN, next_offset=7, **first))
    window.finish(7, 8)
    turns = Beyond(MAIN, 5, {}, ordered=True).turns(window)
    assert [offset for turn in turns for offset in turn.beyond or ()] == ahead
    window.finish(5, 6)
    assert [turn.skipped for turn in in_order(MAIN, window.release())] == [False, "skipped" in first, False]


def test_a_range_that_begins_at_a_settled_record_is_not_settled() -> None:
    """The topic was damaged meanwhile: the others in the range would be lost."""
    beyond = Beyond(MAIN, 5, {6: False, 9: True})
    assert beyond.found(replace(make_record(None, 6), damage=Damage(8, "checksum"))) == []
    assert beyond.found(replace(make_record(None, 9), damage=Damage(9, "checksum"))) == [Settled(10, True)]


def test_what_was_settled_before_is_counted_and_not_observed_again() -> None:
    """Nor does it count as waiting: no look is needed for it."""
    window: OffsetWindow[Outcome | Settled] = OffsetWindow()
    for offset in range(6):
        window.add(offset)
    for offset, fine in ((1, True), (2, False), (3, True), (4, True)):
        window.went_ahead(offset, Settled(offset + 1, fine))
    window.finish(0, 1)
    window.finish(5, 6)
    turns = list(in_order(MAIN, window.release()))
    assert [(turn.next_offset, turn.settles, turn.fine) for turn in turns] == [
        (2, 2, True),
        (3, 1, False),
        (6, 3, True),
    ]
    assert [[seen.count for seen in turn.observations] for turn in turns] == [[1], [], [1]]
    assert (window.waiting, window.is_late()) == (0, False)


# -- the next life ----------------------------------------------------------------------------------------------------


async def test_a_note_about_lost_records_is_corrected_before_any_record_runs() -> None:
    """The life that sees the shorter topic may end before it commits anything else."""
    async with serving(Gate(), HUNG, b"hung", b"a", b"b", b"c", concurrency=8) as (orders, gate):
        for value in (b"a", b"b", b"c"):
            gate.let(value)
        await looks(orders)
    transport = orders.transport
    assert noted(transport) == {1: True, 2: True, 3: True}
    lose_the_end(transport, 2)
    async with MemoryPartition(Gate(), HUNG, transport=transport):
        pass
    for value in NEW:
        transport.broker.append(MAIN, Outgoing(*MAIN, None, value, ()))
    async with serving(Gate(), HUNG, concurrency=8, transport=transport) as (orders, gate):
        await looks(orders)
        gate.open = True
        for value in list(gate.running):  # suspects: two lives ended here
            gate.let(value)
        await looks(orders)
        assert sorted(gate.started) == [b"hung", *NEW]


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_settled_record_counts_though_compaction_has_removed_it(compacted: bool) -> None:
    """The offset passes it like the others: received, and failed."""
    async with serving(Gate(), RetryPolicy("1h", timeout="30s"), concurrency=8) as (orders, gate):
        await orders.send(b"hung", b"fails", b"fine")
        gate.let(b"fails", BankDownError())
        gate.let(b"fine")
        await looks(orders)
    transport = orders.transport
    if compacted:
        del transport.broker.logs[MAIN].entries[1]
    async with serving(Gate(), HUNG, concurrency=8, transport=transport) as (orders, gate):
        gate.let(b"hung")
        await looks(orders)
        assert transport.offsets[MAIN] == 3
        assert split_note(transport.broker.notes[MAIN]).tally.endswith(":3,2,0")


async def test_what_cannot_be_read_waits_for_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again it may be a longer range, which would get a dead letter beside the first one."""
    async with serving(Gate(), HUNG, concurrency=8) as (orders, gate):
        real = orders.transport.broker.read

        def read(*arguments: object, **options: object) -> tuple[list[Record], int]:
            records, position = real(*arguments, **options)  # type: ignore[arg-type]
            damage = Damage(1, "a bad checksum")
            return [replace(each, damage=damage) if each.offset == 1 else each for each in records], position

        monkeypatch.setattr(orders.transport.broker, "read", read)
        await orders.send(b"hung", b"damaged", b"fine")
        gate.let(b"fine")
        await looks(orders)
        assert (noted(orders.transport), orders.dead_letters) == ({2: True}, [])
        gate.let(b"hung")
        await looks(orders)
        assert [letter.reason for letter in orders.dead_letters] == ["damaged"]


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY, Order.LATEST])
async def test_a_record_that_died_ahead_and_is_replayed_before_its_place_is_read_again_runs(order: Order) -> None:
    """Its row waits until the main topic is read that far, and nothing woke it then."""
    gate = Gate()
    async with serving(gate, HUNG, b"hung", key=b"a", order=order, concurrency=8) as (orders, _):
        await orders.send(b"wrong", key=b"b")
        gate.let(b"wrong", Reject("wrong"))
        await looks(orders)
    async with MemoryPartition(gate, HUNG, order=order, max_in_flight=1, transport=orders.transport) as orders:
        await orders.settle()
        assert gate.started == [b"hung", b"wrong", b"hung"], "there is no room for more"
        assert (await orders.command("replay", 1, force=order is Order.LATEST))["refused"] is None
        gate.let(b"hung")
        await orders.advance(1_000)
        assert gate.started.count(b"wrong") == 2

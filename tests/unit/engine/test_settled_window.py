"""The window of a partition with records that were settled beyond the offset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import MAIN, make_record

from retryapp.core.record import Damage
from retryapp.engine.delivery.run import Outcome
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.beyond import Beyond, Settled, in_order
from retryapp.engine.partition.progress import OffsetWindow
from retryapp.ports import Event, Observation


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

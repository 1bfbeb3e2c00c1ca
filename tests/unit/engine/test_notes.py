"""What stands beside the offset of the main topic stays as long as it is about the records after it."""

from __future__ import annotations

import pytest
from doubles import MAIN, SITE

from retryapp.core.marks import Suspected
from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Committed, LaneBatch


def test_a_mark_of_the_rows_does_not_take_that_of_a_record_which_killed_its_worker() -> None:
    """The lane that opens marks its rows before the record runs again: it would be innocent in the next life."""
    notes = Notes(SITE, "this")
    suspected, told = notes.read(Committed(5, "s2:before@5"), 5, 9)
    assert (suspected, told) == (Suspected((5,), (6,), 1, 2), None)
    assert notes.beside(LaneBatch(offsets={MAIN: 5}, rows_note="wr1:this<9.0"))[MAIN].note == "s2:before@5 wr1:this<9.0"
    assert notes.beside(LaneBatch(offsets={MAIN: 6}))[MAIN].note == "r0:this wr1:this<9.0"


@pytest.mark.parametrize("mark", ["g3:this@5-9<20", "r1:this<9"])
def test_a_mark_stays_until_all_that_it_is_about_is_settled(mark: str) -> None:
    """The progress of a neighbour proves nothing of the others."""
    notes = Notes(SITE, "this")
    notes.read(Committed(5, mark), 5, 30)
    for offset in (6, 8):
        assert notes.beside(LaneBatch(offsets={MAIN: offset}))[MAIN].note == mark
    assert notes.beside(LaneBatch(offsets={MAIN: 9}))[MAIN].note == "r0:this"


@pytest.mark.parametrize(
    ("mark", "beside"),
    [(mark, mark) for mark in ("r0:this", "g2:this@6-9<20", "s1:this@6")] + [("s1:this@5", "r0:this")],
    ids=["none", "a group", "alone", "alone, and settled"],
)
def test_a_mark_stays_where_a_later_turn_of_its_transaction_moves_the_offset(mark: str, beside: str) -> None:
    """Where an order holds, records behind others move it while suspects wait: their group would run unmarked.

    Or the mark before would go on: a crash would count against a record whose outcome is durable.
    """
    notes, batch = Notes(SITE, "this"), LaneBatch()
    notes.read(Committed(4, "g9:this@3-12"), 4, 30)
    for turn in (Turn(source=MAIN, next_offset=0, note=mark), Turn(source=MAIN, next_offset=6)):
        turn.join(batch, {MAIN: 4})
    assert notes.beside(batch)[MAIN] == Committed(6, beside)


def test_a_worker_that_dies_after_that_transaction_leaves_its_group() -> None:
    """Whoever comes next suspects those that ran, and counts no crash against a record that was settled before."""
    notes, batch = Notes(SITE, "this"), LaneBatch()
    notes.read(Committed(4, "s2:this@4"), 4, 30)
    for turn in (Turn(source=MAIN, next_offset=0, note="g2:this@6-9<20"), Turn(source=MAIN, next_offset=6)):
        turn.join(batch, {MAIN: 4})
    left = notes.beside(batch)[MAIN]
    assert Notes(SITE, "next").read(left, left.offset, 30)[0] == Suspected((6,), (9,), 2, 0)

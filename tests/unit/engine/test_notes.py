"""What stands beside the offset of the main topic stays as long as it is about the records after it."""

from __future__ import annotations

import pytest
from doubles import MAIN, SITE

from retryapp.core.marks import Suspected
from retryapp.engine.lane.notes import Notes
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

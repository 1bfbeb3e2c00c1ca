"""What stands beside the offset of the main topic stays as long as it is about the records after it."""

from __future__ import annotations

from doubles import MAIN

from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import Committed, LaneBatch


def test_a_mark_of_the_rows_does_not_take_that_of_a_record_which_killed_its_worker() -> None:
    """The lane that opens marks its rows before the record runs again: it would be innocent in the next life."""
    site = LaneSite(name="lane", group="app", partition=0, sources=(MAIN,), main=MAIN, changelog=MAIN, dlq=MAIN)
    notes = Notes(site, "this")
    suspected, told = notes.read(Committed(5, "s2:before"), 5, 9, "")
    assert (suspected, told) == ((2, 9), None)
    assert notes.beside(LaneBatch(offsets={MAIN: 5}, rows_note="wr1:this@a"))[MAIN].note == "s2:before wr1:this@a"
    assert notes.beside(LaneBatch(offsets={MAIN: 6}))[MAIN].note == "r0:this wr1:this@a"

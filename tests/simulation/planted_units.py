"""Planted faults that histories do not meet; each has a unit test fail, by name. See `simulation.mutants`.

`unit/engine/test_planted.py` plants them.
"""

from __future__ import annotations

from typing import Any, Final

from retryapp.core.circuit import Circuit
from retryapp.core.jobs import Steering
from retryapp.engine.delivery import batches, pool
from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.transport import LaneProtocol


def _not_looked(_run: Any) -> bool:
    """The due time is not looked at again at the call. Clocks of histories are set back by more than is a doubt."""
    return True


def _each_alone(self: Circuit, place: Any, **facts: Any) -> Any:
    """Probes are told apart by their calls. In histories a record that fails alone has others beside it."""
    if place in self._asked:
        number = len(self._fine) + len(self._failed)
        self._asked.remove(place)
        self._slots.pop(place, None)
        place = place, number
        self._asked.add(place)
    return _settle(self, place, **facts)


_settle = Circuit.settle


async def _at_the_end(self: LaneProtocol) -> None:
    """An opening that has nothing to write takes the end of the changelog. In histories a commit comes between."""
    if self.fence_at is None and self.pending is not None:
        self.fence_at = self.pending.next_offset


def _pauses_alone(self: Steering) -> Any:
    """Deadlines count outages of before the restart. In histories they are as short as the waits of a policy."""
    return {"": self.pauses, **self.ended}


def _taken_back(self: Notes) -> Any:
    """A clean end clears the marks. In histories a record that kills its worker does so at once."""
    note, rows_note = _ended(self)
    return note and "", rows_note and ""


_ended = Notes.ended


UNITS: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], str], ...]] = (
    ("no due check at the call", ((pool, "is_due", _not_looked), (batches, "is_due", _not_looked)),
     "unit/engine/test_scheduler.py::test_a_row_that_is_not_due_any_more_at_the_call_waits_on"),
    ("same probe", ((Circuit, "settle", _each_alone),),
     "unit/core/test_circuit.py::test_one_record_alone_does_not_open_it_again"),
    ("an opening that writes nothing has a fence", ((LaneProtocol, "_fence_off", _at_the_end),),
     "unit/engine/test_fences.py::test_a_lane_that_opens_again_and_again_without_a_commit_has_a_greater_one_each_time"),
    ("outages are forgotten at a restart", ((Steering, "all_pauses", property(_pauses_alone)),),
     "unit/engine/test_kept_circuits.py::test_a_deadline_does_not_count_an_outage_that_was_over_before_the_restart"),
    ("a clean end takes back the deaths before it", ((Notes, "ended", _taken_back),),
     "unit/engine/test_clean_ends.py::"
     "test_a_run_that_a_clean_end_cancels_counts_for_nothing_and_takes_no_death_back"),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and the test that fails."""

"""The judge knows records of a main topic that was made again apart from those of the former one."""

from __future__ import annotations

import pytest

from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import identity_of
from retryapp.ports import TopicPartition
from simulation.lives import SPAN, id_of, key_in, life_in
from simulation.oracle import Oracle
from simulation.stores import origin_of
from simulation.story import Topics, Violation

MAIN = TopicPartition("orders", 0)


@pytest.mark.parametrize("life", [0, 1, 3])
def test_names_and_rows_say_of_which_life_a_record_is(life: int) -> None:
    """By the topic's id, of which a row has the hash."""
    place = Origin("orders", id_of(life), 1, 7)
    assert key_in(place.text) == origin_of(1, identity_of(place)) == (1, SPAN * life + 7)


@pytest.mark.parametrize(("note", "life"), [("m:again2 r0:x", 2), ("m:simulated c:x", 0), ("r0:x", 5), ("", 5)])
def test_a_note_says_of_which_life_an_offset_is(note: str, life: int) -> None:
    """Without an id it counts for the topic that is there."""
    assert life_in(note, 5) == life


def test_an_offset_passes_records_of_its_own_life_alone() -> None:
    """One that a worker commits for the former topic says nothing of the new one's records."""
    oracle = Oracle(Topics("orders", "retry", "none", "events", "changelog"), (100,), later_ms=50, skew_ms=0)
    oracle.add(Record("orders", 0, SPAN, 7, b"k", b"v", ()), "S")
    oracle.offsets.moved({MAIN: 5}, 0)
    with pytest.raises(Violation, match=f"I6 0/{SPAN}: passed without a fate"):
        oracle.offsets.moved({MAIN: 1}, 1)

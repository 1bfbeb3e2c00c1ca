"""One record's way, followed to where it is at the cut. Words: `conftest.py`."""

from __future__ import annotations

import math

import pytest

from retryapp.ledger.journey import Fate, Fault, follow
from retryapp.ledger.traces import Station

RETRY, REDELIVERY, DLQ, EVENTS = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("text", "fate"),
    [
        ("K0", Fate.SKIPPED),
        ("T1 D1", Fate.DEAD),
        ("T1 R1 D1", Fate.DEAD),
        ("D1 1:T0*", Fate.PENDING),
        ("T1 R1 D2 1:T0 1:R0 1:T1 1:R1 1:S2", Fate.DONE),
        ("D1 1:T0 1:R0 1:D1", Fate.DEAD),
    ],
)
def test_a_way_that_fits_ends_in_one_fate(way, make_cut, text, fate):
    """Straight, by way of a burial, and again after a replay."""
    found = follow(way(text), make_cut())
    assert (found.fate, found.faults) == (fate, [])


@pytest.mark.parametrize(
    ("text", "last"),
    [("T1", (0, 1, Station.RETRY)), ("T1 R1", (0, 1, Station.REDELIVERY)), ("T1 R1 T2", (0, 2, Station.RETRY)),
     ("D1 1:T0", (1, 0, Station.RETRY))],
)  # fmt: skip
def test_a_way_that_ends_nowhere_is_lost(way, make_cut, text, last):
    """It was handled there, nothing followed, and nothing has been deleted."""
    found = follow(way(text), make_cut())
    assert found.fate is Fate.LOST
    assert [fault for fault, _, _ in found.faults] == [Fault.LOST]
    assert found.last is not None
    assert found.last.step == last
    assert found.faults[0][1] == (found.last,)


@pytest.mark.parametrize(
    ("text", "expired", "fate"),
    [
        ("T1 R1", {EVENTS: 51_000}, Fate.UNKNOWN),
        ("T1 R1", {DLQ: math.inf}, Fate.UNKNOWN),
        ("T1 R1", {EVENTS: 50_999, DLQ: 50_999}, Fate.LOST),
        ("T1", {REDELIVERY: 60_000}, Fate.UNKNOWN),
        ("T1", {EVENTS: 60_000, RETRY: 49_000}, Fate.LOST),
        ("T1 W1", {REDELIVERY: math.inf, DLQ: math.inf, EVENTS: math.inf}, Fate.PENDING),
    ],
)
def test_what_may_have_been_deleted_is_unknown_and_not_lost(way, make_cut, text, expired, fate):
    """A topic that keeps everything since the last trace would have what followed."""
    found = follow(way(text), make_cut(expired))
    assert found.fate is fate
    assert len(found.faults) == (fate is Fate.LOST)


@pytest.mark.parametrize(
    ("text", "fate", "count"),
    [
        ("T1 T1 R1 S2", Fate.DONE, 2),
        ("T1 R1 S2 S2 S2", Fate.DONE, 3),
        ("T1 W1 W1", Fate.PENDING, 2),
        ("T1 W1 R1", Fate.PENDING, 2),
        ("T1 R1 S2 D2", Fate.DONE, 2),
        ("T1* S2", Fate.PENDING, 2),
        ("T1 R1 T2 W2 S2", Fate.PENDING, 2),
        ("T1 R1 S2 R2", Fate.DONE, 2),
    ],
)
def test_the_same_hand_off_twice_and_two_places_at_once_are_named(way, make_cut, text, fate, count):
    """With all their places."""
    journey = follow(way(text), make_cut())
    assert journey.fate is fate
    assert [(fault, len(traces)) for fault, traces, _ in journey.faults] == [(Fault.TWICE, count)]


@pytest.mark.parametrize(
    ("text", "expired", "gaps"),
    [
        ("R1 S2", {}, 1),
        ("T1 R1 R2 S3", {}, 1),
        ("W1", {}, 1),
        ("T1 T2 R2 S3", {}, 1),
        ("R1 S2", {RETRY: 10_000}, 0),
        ("S5", {REDELIVERY: 10_000}, 0),
        ("W1", {RETRY: 49_000}, 1),
        ("W1", {RETRY: 50_000}, 0),
        ("1:T0 1:R0 1:S1", {DLQ: 60_000}, 0),
        ("1:T0 1:R0 1:S1", {}, 1),
    ],
)
def test_a_missing_copy_on_the_way_is_a_gap_where_nothing_was_deleted(way, make_cut, text, expired, gaps):
    """A row says itself when its tier record was taken; of the others only a whole topic proves it."""
    found = follow(way(text), make_cut(expired))
    assert [fault for fault, _, _ in found.faults] == [Fault.GAP] * gaps
    assert found.fate is not Fate.LOST


@pytest.mark.parametrize(
    ("text", "fate"),
    [("T1 R1 T0! D1!", Fate.DEAD), ("T1 R1 T0!*", Fate.PENDING), ("T1 W0!", Fate.PENDING), ("T1 R1 D7!", Fate.DEAD)],
)
def test_damaged_numbers_stand_for_whatever_comes_next(way, make_cut, text, fate):
    """Whose record it is can be read, and its attempt cannot."""
    found = follow(way(text), make_cut())
    assert (found.fate, found.faults) == (fate, [])


def test_a_dead_letter_for_a_range_of_a_topic_ends_what_lay_there(way, make_cut):
    """A batch that workers could not read: it names offsets of the retry topic, and no record."""
    traces = way("T1")
    assert follow(traces, make_cut(buried={RETRY: [(0, 2)]})).fate is Fate.DEAD
    assert follow(traces, make_cut(buried={RETRY: [(1, 2)]})).fate is Fate.LOST
    assert follow(traces, make_cut(buried={REDELIVERY: [(0, 2)]})).fate is Fate.LOST

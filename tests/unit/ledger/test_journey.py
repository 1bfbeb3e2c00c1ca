"""One record's way, followed to where it is at the moment. Words: `conftest.py`."""

from __future__ import annotations

import math

import pytest

from retryapp.ledger.journey import CLOCKS_MS, Fate, Fault, follow
from retryapp.ledger.traces import Station

RETRY, DLQ, EVENTS = 1, 2, 3
FIRST_MS = 500_000 - CLOCKS_MS
"""Deleted up to here: the first trace of a way may have been taken then."""


@pytest.mark.parametrize(
    ("text", "fate"),
    [
        ("K0", Fate.SKIPPED),
        ("K1", Fate.SKIPPED),
        ("T1 T2 K3", Fate.SKIPPED),
        ("T1 D2 1:T0 1:K1", Fate.SKIPPED),
        ("U0", Fate.SUPERSEDED),
        ("U1", Fate.SUPERSEDED),
        ("H0 U0", Fate.SUPERSEDED),
        ("T1 T2 U2", Fate.SUPERSEDED),
        ("T1 T2 U3", Fate.SUPERSEDED),
        ("T1 D2 1:T0 1:U0", Fate.SUPERSEDED),
        ("D1", Fate.DEAD),
        ("T1 W1", Fate.PENDING),
        ("T1 T2 W2", Fate.PENDING),
        ("T1 T2 T3 S4", Fate.DONE),
        ("T1 D2 1:T0 1:W0", Fate.PENDING),
        ("T1 D2 1:T0 1:T1 1:S2", Fate.DONE),
        ("D1 1:T0 1:D1 2:T0 2:D1", Fate.DEAD),
        ("T1 T1+1 T2+1 W2+1", Fate.PENDING),
        ("T1 T1+1 T1+2 S2+2", Fate.DONE),
        ("T0+1 W0+1", Fate.PENDING),
        ("T0+1 T0+2 T1+2 S2+2", Fate.DONE),
        ("T1 D2 1:T0 1:T0+1 1:S1+1", Fate.DONE),
        # what may be newer than the moment contradicts nothing: a row tells how much is; else the end came before
        ("T1 W1 S2?", Fate.PENDING),
        ("T1 W1 T2? T3? D4? 1:T0?", Fate.PENDING),
        ("T1 T2? W2 T3?", Fate.PENDING),
        ("T1 T2? S3?", Fate.DONE),
        ("D1 1:T0?", Fate.DEAD),
        ("D1? 1:T0? 1:T1?", Fate.DEAD),
        ("D1 1:T0? 1:S1?", Fate.DONE),
    ],
)
def test_a_way_that_fits_ends_in_one_fate(way, make_cut, text, fate):
    """Straight, with deliveries that spend no attempt, and again after a replay."""
    found = follow(way(text), make_cut())
    assert (found.fate, found.faults) == (fate, [])


@pytest.mark.parametrize(
    ("text", "last"),
    [("T1", (1, Station.RETRY)), ("T1?", (1, Station.RETRY)), ("T1 T2?", (2, Station.RETRY)),
     ("D1 1:T0", (2, Station.RETRY)), ("D1 1:T0 1:T1?", (3, Station.RETRY))],
)  # fmt: skip
def test_a_way_that_ends_nowhere_is_lost(way, make_cut, text, last):
    """No row, no end, and nothing has been deleted."""
    found = follow(way(text), make_cut())
    assert (found.fate, found.last.step) == (Fate.LOST, last)
    assert [(fault, traces) for fault, traces, _ in found.faults] == [(Fault.LOST, (found.last,))]
    unknown = follow(way(text), make_cut(missing_letters="app.orders.dlq"))
    assert (unknown.fate, unknown.last.step) == (Fate.UNKNOWN, last), "its letter may have gone with the topic"
    assert [(fault, traces) for fault, traces, _ in unknown.faults] == [(Fault.MISSING, (unknown.last,))]


@pytest.mark.parametrize(
    ("text", "expired", "fate"),
    [
        ("T1", {EVENTS: FIRST_MS}, Fate.UNKNOWN),
        ("T1", {DLQ: math.inf}, Fate.UNKNOWN),
        ("T1", {EVENTS: FIRST_MS - 1, DLQ: FIRST_MS - 1}, Fate.LOST),
        ("T1", {RETRY: math.inf}, Fate.LOST),
        ("T1 W1", {DLQ: math.inf, EVENTS: math.inf}, Fate.PENDING),
    ],
)
def test_what_may_have_been_deleted_is_unknown_and_not_lost(way, make_cut, text, expired, fate):
    """Topics that keep everything since the last trace would have the end; further retry copies are none."""
    found = follow(way(text), make_cut(expired))
    assert found.fate is fate
    assert len(found.faults) == (fate is Fate.LOST)


@pytest.mark.parametrize(
    ("text", "fate", "count"),
    [
        ("T1 T1 S2", Fate.DONE, 2),
        ("T1 T1+1 T1+1 S2+1", Fate.DONE, 2),
        ("T1 S1+1 T1+2", Fate.DONE, 2),
        ("T1 S2 S2? S2", Fate.DONE, 3),
        ("T1 W1 S2", Fate.PENDING, 2),
        ("T1 W1 D2", Fate.PENDING, 2),
        ("T1 T2 W1", Fate.PENDING, 2),
        ("D1 T1 W1", Fate.PENDING, 2),
        ("D1 T2? W2", Fate.DEAD, 2),
        ("T1 T2 S2", Fate.DONE, 2),
        ("T1 D2 S2", Fate.DEAD, 2),
        ("T1 S2 T3", Fate.DONE, 2),
        ("T1 D2 D3", Fate.DEAD, 2),
        ("K0 T1", Fate.SKIPPED, 2),
    ],
)
def test_the_same_hand_off_twice_and_two_places_at_once_are_named(way, make_cut, text, fate, count):
    journey = follow(way(text), make_cut())
    assert journey.fate is fate
    assert [(fault, len(traces)) for fault, traces, _ in journey.faults] == [(Fault.TWICE, count)]


@pytest.mark.parametrize(
    ("text", "expired", "gaps"),
    [
        ("S2", {}, 1),
        ("D2", {}, 1),
        ("T1 T3 S4", {}, 1),
        ("T1 S3", {}, 1),
        ("W1", {}, 1),
        ("T1 W2", {}, 1),
        ("S2", {RETRY: 10_000}, 0),
        ("W1", {RETRY: FIRST_MS - 1}, 1),
        ("W1", {RETRY: FIRST_MS}, 0),
        ("1:T0 1:S1", {}, 1),
        ("T1 1:T0 1:W0", {}, 1),
        ("D1 1:W0", {}, 1),
        ("D1 2:T0 2:S1", {}, 1),
        ("T1 T1+2 S2+2", {}, 1),
        ("T0+2 S1+2", {}, 1),
        ("T0+2 S1+2", {RETRY: 10_000}, 0),
        ("T1 T2+1 S3+1", {}, 1),
        ("T1 T3 T3+1 S4+1", {}, 1),
        ("T1 T2 T1+2 S2+2", {}, 1),
        ("T2 W1+1", {}, 2),
        ("D1 1:T0+1 1:S1+1", {}, 1),
        ("1:T0 1:S1", {DLQ: 10_000}, 0),
    ],
)
def test_a_missing_copy_on_the_way_is_a_gap_where_nothing_was_deleted(way, make_cut, text, expired, gaps):
    """A row tells when its copy was taken; of the others only a whole topic proves it."""
    found = follow(way(text), make_cut(expired))
    assert [fault for fault, _, _ in found.faults] == [Fault.GAP] * gaps
    assert found.fate is not Fate.LOST


def test_a_replay_without_the_dead_letter_before_it_is_a_gap(way, make_cut):
    """Also where its deliveries count on."""
    first, *replayed = way("T1 T2 S3")
    found = follow([first, *(trace._replace(replays=1) for trace in replayed)], make_cut())
    assert [(fault, traces[0].delivery) for fault, traces, _ in found.faults] == [(Fault.GAP, 2)]


@pytest.mark.parametrize(
    ("text", "fate"),
    [
        ("T0! W1", Fate.PENDING),
        ("T1 T0! S3", Fate.DONE),
        ("T0!", Fate.LOST),
        ("T1 W0!", Fate.PENDING),
        ("T1 T2 W0!", Fate.PENDING),
        ("T1 W0! T2? S3?", Fate.PENDING),
        ("W0!", Fate.PENDING),
        ("D1!", Fate.DEAD),
        ("T1 T2 D0!", Fate.DEAD),
        ("T1 D7! 1:T0 1:W0", Fate.PENDING),
        ("D1 1:T0 1:T1 D1!", Fate.DEAD),
    ],
)
def test_damaged_numbers_are_those_of_the_copy_before(way, make_cut, text, fate):
    """Whose record it is can be read, and its attempt cannot; a damaged copy hides no row and no end."""
    found = follow(way(text), make_cut())
    assert (found.fate, len(found.faults)) == (fate, fate is Fate.LOST)


@pytest.mark.parametrize("text", ["D1 1:T0 1:T1 1:D2", "D1 1:T0 1:T1 D1!"])
@pytest.mark.parametrize(
    ("kinds", "fate", "handled"),
    [
        ((), Fate.DEAD, False),
        ((Station.SET_ASIDE,), Fate.DISCARDED, False),
        ((Station.SET_ASIDE, Station.RESTORED), Fate.DEAD, False),
        ((Station.HANDLED,), Fate.DEAD, True),
        ((Station.LEFT,), Fate.DEAD, False),
        ((Station.LEFT, Station.SET_ASIDE), Fate.DISCARDED, False),
    ],
)
def test_marks_of_a_letter_are_behind_it(way, make_cut, text, kinds, fate, handled):
    """That of an earlier one is before; the letter of a damaged row and its marks may not know of the replay."""
    traces = way(text)
    letter = max((trace for trace in traces if trace.station is Station.DEAD), key=lambda trace: trace.offset)
    marks = [letter._replace(station=kind, loose=False, offset=n) for n, kind in enumerate(kinds, start=10)]
    earlier = letter._replace(station=Station.REPLAYED, loose=False, replays=1, offset=1)
    found = follow(sorted([*traces, earlier, *marks]), make_cut())
    assert (found.fate, found.faults, found.handled) == (fate, [], handled)
    if kinds:
        assert follow(marks, make_cut()).handled == handled, "retention took the letter"


def test_a_superseded_record_is_nowhere_else_and_nothing_is_missing_before(way, make_cut):
    """A row beside it, another end, or a copy that is not there are found."""
    assert [fault for fault, *_ in follow(way("T1 W1 U1"), make_cut()).faults] == [Fault.TWICE]
    assert [fault for fault, *_ in follow(way("T1 U1 S2"), make_cut()).faults] == [Fault.TWICE]
    assert [fault for fault, *_ in follow(way("T1 U3"), make_cut()).faults] == [Fault.GAP]
    assert follow(way("T1 W1 U1?"), make_cut()).fate is Fate.PENDING

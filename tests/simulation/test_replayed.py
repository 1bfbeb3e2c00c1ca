"""The judge of replays in an order finds what goes before them, and lets pass what may."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest

from retryapp.core.record import Record
from simulation.replayed import Replays
from simulation.story import Going, Opening, Story, Violation

SESSION = Opening("w", 10.0)
NEXT = Opening("w", 100.0)


class Told:
    """Six records, the last of another key; the third is replayed at 50 ms unless a test says otherwise."""

    def __init__(self, order: str = "key") -> None:
        keys = (b"a", b"a", b"a", b"a", b"a", b"b")
        self.stories = {(0, at): Story(Record("orders", 0, at, 7, key, b"v", ()), "R") for at, key in enumerate(keys)}
        self.waiting: set[int] = set()
        self.reached = Counter[str]()
        self.replays = Replays(self.stories, {"w": order}, lambda at, _: at[1] in self.waiting, self.reached)

    def replay(self, offset: int = 2, at_ms: float = 50.0) -> None:
        self.waiting.add(offset)
        self.replays.came_back((0, offset), at_ms)

    def run(self, offset: int, *, cancelled_ms: float | None = None) -> None:
        """A record begins, and its call goes on."""
        story = self.stories[0, offset]
        story.began_ms[SESSION, False] = 40.0
        story.going.append(Going("w") if cancelled_ms is None else Going("w", cancelled_ms=cancelled_ms))

    def begins(self, offset: int, opening: Opening = SESSION, *, owner: bool = True, holds: bool = True) -> None:
        with nullcontext() if holds else pytest.raises(Violation, match=rf"^I33 0/{offset}: begins before"):
            self.replays.begun((0, offset), opening, owner=owner)


def test_one_may_have_been_about_to_run_when_a_replay_came() -> None:
    """It is tried again after that, and the others begin after that."""
    told = Told()
    told.replay()
    for _ in range(2):
        told.begins(1)
    told.begins(3)
    told.begins(3, holds=False)
    told.begins(4, holds=False)
    told.waiting.clear()
    told.begins(4)


@pytest.mark.parametrize(("cancelled_ms", "holds"), [(None, False), (45.0, True)])
def test_what_runs_when_a_replay_comes_is_the_one(cancelled_ms: float | None, *, holds: bool) -> None:
    """A call that was told to stop may be of a session of before."""
    told = Told()
    told.run(1, cancelled_ms=cancelled_ms)
    told.replay()
    told.begins(3, holds=holds)
    assert told.reached["a record is replayed while another of its sequence runs"] == (cancelled_ms is None)


def test_what_runs_of_another_sequence_is_not_the_one() -> None:
    """It is not before it."""
    told = Told()
    told.run(5)
    told.replay()
    told.begins(3)


def test_a_session_that_opens_later_has_found_the_replay() -> None:
    """Whoever owns the partition meanwhile."""
    told = Told()
    told.replay()
    told.begins(3, NEXT, owner=False, holds=False)


def test_an_owner_that_was_replaced_has_not_heard_of_the_replay() -> None:
    """It came through the session of another."""
    told = Told()
    told.replay()
    for offset in (3, 4):
        told.begins(offset, owner=False)


def test_replays_keep_their_order() -> None:
    """The later one may run already where it came first."""
    told = Told()
    told.replay(2, 50.0)
    told.replay(3, 60.0)
    told.begins(3, holds=False)
    told = Told()
    told.replay(3, 50.0)
    told.replay(2, 60.0)
    told.begins(3)
    told.begins(4, holds=False)


@pytest.mark.parametrize(("order", "holds"), [("key", True), ("partition", False), ("none", True), ("latest", True)])
def test_only_what_is_of_its_sequence_waits_for_a_replay(order: str, *, holds: bool) -> None:
    """Where no order is kept, or the newest counts, nothing does."""
    told = Told(order)
    told.replay()
    told.begins(5)
    told.begins(5, holds=holds)

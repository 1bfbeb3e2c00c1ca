"""Main topics lose their end: what is there is delivered, and so is what waits."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from retryapp.engine.lane import recovery
from retryapp.engine.partition.latest import Latest
from retryapp.engine.partition.lost_rows import LostRows
from simulation.losing import Losing, LosingChangelogs

SEEDS = range(60)
"""`make test` runs these, `make test-all` twelve times as many."""


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(range(60, 800), marks=pytest.mark.extended)], ids=len)
def test_what_is_there_and_what_waits_comes_to_its_end(seeds: range) -> None:
    """Although others have its place, and its name."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        history = Losing(seed)
        assert history.run() is None, seed
        reached += history.reached
    assert min(reached[f"a record is gone{what}"] for what in ("", " that waits")) > 0
    assert reached["an offset was set to the end"] > 0


def test_a_changelog_that_has_lost_its_end_gets_nothing_and_nothing_begins() -> None:
    """The store has more, so it is known."""
    reached: Counter[str] = Counter()
    for seed in SEEDS:
        history = LosingChangelogs(seed)
        assert history.run() is None, seed
        reached += history.reached
    assert reached["a changelog has lost its end"] > 0


async def _none(*_: Any) -> set[int]:
    """Nothing that is noted is looked at."""
    return set()


async def _not_looked(_self: Latest) -> None:
    """A row is of the record at its offset."""


PLANTED: dict[str, tuple[type[Losing], int, Any, str, Any]] = {
    "a note names what the topic has lost": (Losing, 367, recovery, "noted_and_lost", _none),
    "a lost record replaces newer ones": (Losing, 163, Latest, "_find_lost", _not_looked),
    "a row goes by the name of its record": (Losing, 8, LostRows, "row_of", lambda *_: (False, False)),
    "a record does not wait for the row in its place": (Losing, 8, LostRows, "holds", lambda *_: False),
    "an opening writes to what has lost its end": (LosingChangelogs, 2, recovery, "check_end", lambda *_: None),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """By the history of this number."""
    kind, seed, owner, attribute, replaced = PLANTED[name]
    with patch.object(owner, attribute, replaced):
        assert kind(seed).run() is not None

"""Main topics lose their end: what is there is delivered, and so is what waits."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from retryapp.engine.lane import recovery
from retryapp.engine.partition.latest import Latest
from retryapp.engine.partition.lost_rows import LostRows
from simulation.losing import Losing

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


async def _none(*_: Any) -> list[int]:
    """Nothing that is noted is looked at."""
    return []


async def _not_looked(_self: Latest) -> None:
    """A row is of the record at its offset."""


PLANTED: dict[str, tuple[Any, str, Any, int]] = {
    "a note names what the topic has lost": (recovery, "noted_and_lost", _none, 81),
    "a lost record replaces newer ones": (Latest, "_find_lost", _not_looked, 163),
    "a row goes by the name of its record": (LostRows, "row_of", lambda _self, _record: (False, False), 8),
    "a record does not wait for the row in its place": (LostRows, "holds", lambda _self, _run: False, 8),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """By the history of this number."""
    owner, attribute, replaced, seed = PLANTED[name]
    with patch.object(owner, attribute, replaced):
        assert Losing(seed).run() is not None

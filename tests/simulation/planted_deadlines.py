"""Planted faults of deadlines: what `max_elapsed` counts, and what it does not."""

from __future__ import annotations

from typing import Any, Final

from retryapp.core.decide import decide
from retryapp.engine.delivery import judge
from retryapp.engine.delivery.pace import Pace
from simulation.plan import EXPIRING


def _endless(policy: Any, **told: Any) -> Any:
    """A record waits however long ago it has failed first."""
    return decide(policy, **{**told, "first_failed_ms": told["now_ms"]})


def _by_the_record(policy: Any, **told: Any) -> Any:
    """A second is taken for gone before the first failure."""
    return decide(policy, **{**told, "first_failed_ms": told["first_failed_ms"] - 1_000})


def _held_counts(_self: Pace, counted_ms: int, *_held: Any) -> int:
    """The time of holds counts."""
    return counted_ms


def _pause_counts(_self: Pace, _since_ms: int, _now_ms: int, *_circuits: str) -> int:
    """The time of pauses and outages counts."""
    return 0


DEADLINES: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("a deadline is that of the last failure", ((judge, "decide", _endless),), EXPIRING + 6),
    ("a deadline comes too soon", ((judge, "decide", _by_the_record),), EXPIRING + 6),
    ("a deadline counts holds", ((Pace, "later_ms", _held_counts),), EXPIRING + 8_749),
    ("a deadline counts pauses", ((Pace, "away_ms", _pause_counts),), EXPIRING + 661),
)
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it."""

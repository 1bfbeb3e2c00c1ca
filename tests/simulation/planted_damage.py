"""Planted faults of damaged rows and of transactions without an end; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from retryapp.core.errors import RecordError
from retryapp.engine.delivery import deliver
from retryapp.engine.delivery.damage import bury_damaged
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane import transport
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import commands
from retryapp.engine.partition.unread import Unread


def _without_letter(run: Run, error: RecordError, now_ms: int) -> Turn:
    """A damaged row is removed without a dead letter."""
    turn = _bury(run, error, now_ms)
    turn.publishes = turn.observations = ()
    return turn


def _going_on(run: Run, error: RecordError, now_ms: int) -> Turn:
    """A damaged row does not pause its partition, whose sequences are to stop behind dead records."""
    turn = _bury(run, error, now_ms)
    run.pauses = None
    return turn


_bury = bury_damaged


def _unseen(_self: Unread, _identity: bytes) -> None:
    """A damaged row is found by its time alone."""


def _no_stops(*_: Any) -> Iterator[bytes]:
    """Rows that stop sequences and are damaged stop nothing."""
    return iter(())


async def _undecided(*_: Any) -> None:
    """A lane opens behind a transaction that has no end."""


DAMAGE: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("a transaction without an end is left so", ((transport, "end_undecided", _undecided),), 1515),
    ("a damaged row ends without a letter", ((deliver, "bury_damaged", _without_letter),), 1),
    ("nothing pauses behind a damaged row", ((deliver, "bury_damaged", _going_on),), 4_000_051),
    ("a damaged row is not looked for", ((Unread, "add", _unseen),), 4_000_217),
    ("a damaged stop is not looked for", ((commands, "lost_stops", _no_stops),), 4_001_326),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

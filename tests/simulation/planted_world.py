"""Planted faults of what somebody does to topics and offsets; see `simulation.mutants`."""

from __future__ import annotations

import json
from typing import Any, Final

from retryapp.engine.lane import recovery, transport
from retryapp.engine.partition.session import Session
from retryapp.ports import Committed
from simulation.lanes import SimLane


async def _never_back(self: SimLane) -> Any:
    """A lane goes on where its changelog says that it was, whatever somebody has set."""
    committed = await _fetch_committed(self)
    rows = [row for row in self.worker.broker.visible(self.place.changelog) if row.key == b"progress"]
    reached = json.loads(rows[-1].value or b"{}")["next"] if rows else {}
    return {tp: Committed(max(at.offset, reached.get(tp.topic, 0)), at.note) for tp, at in committed.items()}


_fetch_committed = SimLane.fetch_committed


def _not_looked_for(_self: Session, _record: Any) -> bool:
    """A record that comes again runs, also beside its row."""
    return False


def _not_looked_at(_site: Any, _named: str) -> None:
    """A changelog is taken for the one that it was, whatever its id."""


WORLD: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("an offset that was set back counts for nothing", ((SimLane, "fetch_committed", _never_back),), 14_000_002),
    ("the id of a changelog is not looked at",
     ((transport, "check_changelog", _not_looked_at), (recovery, "check_changelog", _not_looked_at)), 14_000_015),
    ("a record that comes again runs beside its row", ((Session, "_waits", _not_looked_for),), 14_000_000),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

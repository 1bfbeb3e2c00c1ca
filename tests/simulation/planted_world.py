"""Planted faults of what somebody does to topics and offsets; see `simulation.mutants`."""

from __future__ import annotations

import json
from typing import Any, Final

from retryapp.core import marks
from retryapp.core.marks import Note
from retryapp.engine.delivery import deliver
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane import recovery, transport
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.lost_rows import LostRows
from retryapp.engine.worker.ownership import Ownership
from retryapp.ports import Committed
from simulation.lanes import SimLane


async def _never_back(self: SimLane) -> Any:
    """A lane goes on where its changelog says that it was, whatever somebody has set."""
    committed = await _fetch_committed(self)
    rows = [row for row in self.worker.broker.visible(self.place.changelog) if row.key == b"progress"]
    reached = json.loads(rows[-1].value or b"{}")["next"] if rows else {}
    return {tp: Committed(max(at.offset, reached.get(tp.topic, 0)), at.note) for tp, at in committed.items()}


_fetch_committed = SimLane.fetch_committed


def _not_looked_for(_self: LostRows, _record: Any) -> tuple[bool, bool]:
    """A record that comes again runs, also beside its row."""
    return False, False


def _not_looked_at(_site: Any, _named: str) -> None:
    """A changelog is taken for the one that it was, whatever its id."""


def _of_any_topic(text: str) -> Note:
    """The topic id beside an offset is ignored."""
    return _split_note(text)._replace(main="")


_split_note = marks.split_note


def _same(_self: Ownership, _ids: object) -> str:
    """A worker does not see that a main topic was made again."""
    return ""


async def _unasked(_self: SimLane) -> str:
    """An opening does not ask which main topic is there."""
    return ""


def _of_this_topic(run: Run) -> Turn | None:
    """Rows of a main topic that was made again are dropped."""
    if run.claim is not None and run.metadata and run.metadata.origin.topic_id != run.context.topic_id:
        return run.settle()
    return _passed(run)


_passed = deliver._passed


WORLD: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("an offset that was set back counts for nothing", ((SimLane, "fetch_committed", _never_back),), 14_000_002),
    ("the id of a changelog is not looked at",
     ((transport, "check_changelog", _not_looked_at), (recovery, "check_changelog", _not_looked_at)), 14_000_065),
    ("the topic id beside an offset is ignored", ((marks, "split_note", _of_any_topic),), 14_000_179),
    ("a worker goes on with a main topic that was made again", ((Ownership, "made_again", _same),), 14_000_039),
    ("an opening does not ask which main topic is there", ((SimLane, "main_id", _unasked),), 14_006_978),
    ("rows of a former main topic are dropped", ((deliver, "_passed", _of_this_topic),), 14_000_003),
    ("a record that comes again runs beside its row", ((LostRows, "row_of", _not_looked_for),), 14_000_000),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

"""Planted faults of what comes back through the main topic; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from retryapp.core.publication import Publication
from retryapp.core.record import Record
from retryapp.core.redelivery import is_copy
from retryapp.engine.delivery.run import Claim
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import scheduler, session
from retryapp.engine.partition.redelivery import Redelivery, Rows
from retryapp.engine.partition.session import Session

NEVER: Final = 1 << 60


def _deduplicated(self: Session, records: Sequence[Record]) -> None:
    """A copy has the event id of its record, so it is told as a duplicate."""
    for record in records:
        duplicates = self._duplicates
        if duplicates is not None and is_copy(record.topic, record.partition, record.headers):
            skipped = duplicates.skip(record, self._context.clock.wall_ms())
            if skipped is not None:
                self._submit(Turn(publishes=skipped.publishes))
    _accept(self, records)


def _at_once(self: Redelivery, row: tuple[Claim, Record], copy: Publication) -> None:
    """A row is delivered beside its copy, and does not wait for it."""
    _publish(self, row, copy)
    self._deliver([row])


def _never(self: Redelivery, rows: Rows) -> None:
    """A row that was sent in a former session waits for its copy, which that one has read."""
    for row in rows:
        if row[0].sent:
            self._await(row, NEVER)
    _take(self, [row for row in rows if not row[0].sent])


def _counted(self: Session, records: Sequence[Record]) -> None:
    """Copies are counted as received."""
    copies = sum(is_copy(record.topic, record.partition, record.headers) for record in records)
    tally = self._counting._tally
    self._counting._tally = tally.plus(received=copies, ok=0, skipped=copies)
    _accept(self, records)


_accept = Session.accept
_publish = Redelivery._publish
_take = Redelivery.take


THROUGH: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("a copy is taken for a record", ((session, "is_copy", lambda *_: False),), 6_000_000),
    ("a copy is taken for a record where none is due by it", ((session, "is_copy", lambda *_: False),), 22_000_013),
    ("a copy is deduplicated", ((Session, "accept", _deduplicated),), 6_000_003),
    ("copies are counted as received", ((Session, "accept", _counted),), 6_000_000),
    ("a row begins before its copy is there", ((Redelivery, "_publish", _at_once),), 6_000_000),
    ("what was sent is never due", ((Redelivery, "take", _never),), 6_000_000),
    ("what was sent is sent again", ((scheduler, "SENT", 0),), 6_000_000),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

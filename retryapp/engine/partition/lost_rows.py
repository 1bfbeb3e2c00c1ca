"""Rows of records that the main topic has lost with its end, where it has others at their offsets since.

Row and new record have one name in the table, so a row of the new one would replace that of the other. The new
record's first delivery waits until the row has ended, and the offset with it: a crash loses neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from retryapp.core.errors import DamagedRowError, NewerRowError
from retryapp.core.headers import RETRY_ORIGIN_TIMESTAMP_MS
from retryapp.core.metadata import clamped
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import is_stopped, row_header
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.sequences import Sequences
from retryapp.ports import PendingTable

logger = logging.getLogger(__name__)

_TIME = RETRY_ORIGIN_TIMESTAMP_MS.encode()


class LostRows:
    """Those of one session of a partition that have the places of records which came in."""

    def __init__(self, context: DeliveryContext, pending: PendingTable | None, *, start: Callable[[Run], None]) -> None:
        """Begin.

        Args:
            context: of the handler.
            pending: the table.
            start: runs a first delivery.
        """
        self.sequences: Sequences | None = None
        self._context = context
        self._pending = pending
        self._start = start
        self._runs: dict[bytes, Run] = {}
        """The new records, by identity."""
        self._ready: dict[bytes, None] = {}
        """Those of them that may begin but for that, in their turn."""

    def row_of(self, record: Record) -> tuple[bool, bool]:
        """Tell whether a record that is taken in has a row, and whether its place has the row of another record.

        Their times tell. A record whose sequence has stopped for it has no row; nor has a range that cannot be read.
        """
        if self._pending is None or record.damage is not None:
            return False, False
        origin = Origin(record.topic, self._context.topic_id, record.partition, record.offset)
        if (key := self._pending.find(identity_of(origin))) is None:
            return False, False
        row = self._pending.get(key) or b""
        try:
            time = row_header(row, _TIME)
        except (DamagedRowError, NewerRowError):
            return False, False  # it does not say whose it is
        is_own = time == b"%d" % clamped(record.timestamp_ms, -1)
        return is_own and not is_stopped(row), not is_own

    def add(self, run: Run) -> None:
        """Take note of a first delivery, before it may begin, whose place has the row of another record."""
        self._runs[run.place] = run

    def leave(self, run: Run) -> bool:
        """Note that a first delivery has an outcome without a run; tell whether its place has the row of another."""
        return bool(self._runs) and self._runs.pop(run.place, None) is not None

    def holds(self, run: Run) -> bool:
        """Tell whether the place of a first delivery still has the row of another record."""
        return self.waits_for(run.place)

    def waits_for(self, identity: bytes) -> bool:
        """Tell whether a first delivery waits for the row with this identity."""
        return identity in self._runs

    def say(self, run: Run) -> None:
        """Say that a first delivery waits, and for what."""
        record, name = run.record, failure_id(self._context.handler.group, run.origin)
        text = "%s[%s]@%s waits for another record of that offset, which the topic has lost: both are %s."
        text += " The offset waits, too. If that takes too long, cancel it, or release the sequence that it has stopped"
        logger.warning(text, record.topic, record.partition, record.offset, name)

    @property
    def blocked(self) -> str | None:
        """What waits, for people; None: nothing."""
        if not self._runs:
            return None
        first = min(run.record.offset for run in self._runs.values())
        return f"offset {first} waits for another record of that offset, which the topic has lost"

    def begin(self, run: Run) -> None:
        """Have a first delivery run, once the row in its place has ended."""
        if not self._runs:
            self._start(run)
            return
        if self.holds(run):
            self._ready[run.place] = None
        else:
            self._start(run)
        if self.sequences is not None:
            for place in [*self._ready]:  # this one may replace rows that others wait for
                if self.sequences.replaces(self._runs[place]):
                    self._go(place)

    def applied(self, turns: Sequence[Turn]) -> None:
        """Take note of turns that are in the table: the places of rows that they remove are free."""
        for turn in turns if self._runs else ():
            for row in turn.rows:
                if row.value is None and row.identity in self._runs:
                    self._go(row.identity)

    def _go(self, place: bytes) -> None:
        run = self._runs.pop(place)
        if place in self._ready:
            del self._ready[place]
            self._start(run)
        elif self.sequences is not None and run.sequence is not None:
            self.sequences.advance(run.sequence)

"""Caps of an ordered handler: how many sequences of a partition may wait, and how many records of one."""

from __future__ import annotations

from retryapp.core.holding import Holding
from retryapp.core.rows import hold_of
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.line import Line


class Caps:
    """Those of one session of a partition."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.parked: set[bytes] = set()
        """Sequences that wait: those with rows."""
        self.crowded: dict[bytes, Line] = {}
        """Those of which no more records may wait in the table, and some would."""

    def count(self, name: bytes, line: Line) -> None:
        """Note whether a sequence waits."""
        self.crowded.pop(name, None)
        if line.rows:
            self.parked.add(name)
        else:
            self.parked.discard(name)

    @property
    def full(self) -> bool:
        """Whether no record may come in, as so many sequences wait."""
        return len(self.parked) >= self._holding.max_sequences and not self._holding.releases

    @property
    def blocked(self) -> str | None:
        """What keeps records on the main topic, for people; None: no cap does."""
        if self.full:
            return f"no new records come in: as many keys wait as may (max_sequences={self._holding.max_sequences})"
        size = self._holding.max_sequence_size
        for line in self.crowded.values():
            return f"later records of a key stay out: as many wait for {line.head} as may (max_sequence_size={size})"
        return None

    def reached(self, line: Line) -> bool:
        """Tell whether no more records of a sequence may wait in the table, and some would."""
        return bool(line.waiting) and len(line.rows) >= self._holding.max_sequence_size

    def is_surplus(self, line: Line, hold: int) -> bool:
        """Tell whether the head of a sequence is dead, as too many wait for it; one that is on hold never is."""
        return not hold and self._holding.releases and self.reached(line)

    def exceeds(self, run: Run, outcome: Turn, line: Line) -> bool:
        """Tell whether a record may not wait, as too many would wait with it; one that is on hold may."""
        holding = self._holding
        waits = bool(outcome.rows) and outcome.rows[0].value is not None and not hold_of(outcome.rows[0].value)
        if not holding.releases or not waits:
            return False
        is_new = run.claim is None
        if is_new and run.sequence not in self.parked and len(self.parked) >= holding.max_sequences:
            return True
        return len(line.rows) + is_new + len(line.waiting) > holding.max_sequence_size

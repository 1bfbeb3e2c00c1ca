"""What must hold of tries in place: a delivery that calls its handler more than once (I17).

With lists that is so where the function raises: all records of that call are called again, in halves.

A script's letter G fails at the first try of an attempt, and is fine at the next one. F fails at all of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from simulation.story import Origin, Violation

LIST: Final = 3
"""Records of one call, where the handler takes lists."""
HALVINGS: Final = 2
AGAIN: Final = frozenset("FGYUEIO")
"""Steps after which a delivery tries again: a time-out, a verdict and a success are the end of it."""

Session = tuple[object, int]
"""A partition of a worker, and the number of its session."""


class Tries:
    """Judges the tries of the records of one handler."""

    def __init__(self, retries: int, *, lists: bool = False) -> None:
        self._retries = retries
        self._lists = lists
        self._runs: dict[tuple[Origin, int, Session], tuple[int, str]] = {}
        """Tries of each attempt in each session, and what the last one does."""
        self.reached: Counter[str] = Counter()

    def gathered(self, records: int, *, alone: bool) -> None:
        """A call begins with so many records; one of them has to run alone.

        Raises:
            Violation: there are too many.
        """
        self.reached[f"a list of {records}"] += 1
        if records > (1 if alone else LIST):
            raise Violation(f"I17: a call with {records} records, {'and one has to run alone' * alone}")

    def begun(self, origin: Origin, attempt: int, number: int, now: str, session: Session | None) -> None:
        """A try begins, which does this.

        Raises:
            Violation: it follows no try of the same session that has failed, or one too many.
        """
        if number == 1:
            if session is not None:
                self._runs[origin, attempt, session] = 1, now
            return
        self.reached["a delivery has tried again in place"] += 1
        before, did = (0, "") if session is None else self._runs.get((origin, attempt, session), (0, ""))
        what = f"I17 {origin[0]}/{origin[1]}: try {number} of attempt {attempt}"
        if session is None or before != number - 1:
            raise Violation(f"{what} follows {before} in its session")
        if number > 1 + self._retries or not (self._lists or did in AGAIN):
            raise Violation(f"{what}, after one that does {did}, with {self._retries} waits at most")
        self._runs[origin, attempt, session] = number, now

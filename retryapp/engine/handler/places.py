"""How many runs of what comes back to one service may go on at once in a worker (`CircuitBreaker.max_concurrent`).

A due row has its place from its claim on until its run has ended, so the rows beyond stay in the table and no runner
waits. Partitions stand in line for a place: each takes one in its turn, and leaves the line once it has no more rows.
"""

from __future__ import annotations

from collections.abc import Callable

Wake = Callable[[], None]
"""Has a partition look for rows; by this it is known in the line, so it must be the same each time."""


class Places:
    """Those of one service, for all partitions of a handler in this worker."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: set[object] = set()
        self._line: dict[Wake, None] = {}
        """Who may have more rows, in the order of their turns. While there is a place, the first one was woken."""

    @property
    def full(self) -> bool:
        """Whether none is free."""
        return len(self._taken) >= self.most

    def room(self, wake: Wake) -> int:
        """Return how many a partition may take now; with 0 it stands in line, else `looked` has to follow."""
        if self.full or next(iter(self._line), wake) != wake:
            self._line.setdefault(wake)
            return 0
        return self.most - len(self._taken) if self._line.keys() <= {wake} else 1

    def looked(self, wake: Wake, *, more: bool) -> None:
        """Note that a partition has taken what it may, and whether it may have `more` rows."""
        self._line.pop(wake, None)
        if more:
            self._line[wake] = None
        self._wake()

    def take(self, row: object) -> bool:
        """Give a row a place; tell whether it has one."""
        if row not in self._taken and self.full:
            return False
        self._taken.add(row)
        return True

    def free(self, row: object) -> None:
        """Take the place of a row back, if it has one."""
        if row in self._taken:
            self._taken.remove(row)
            self._wake()

    def leave(self, wake: Wake) -> None:
        """Have a partition leave the line: it does not look for rows any more."""
        self._line.pop(wake, None)
        self._wake()

    def _wake(self) -> None:
        if self._line and not self.full:
            next(iter(self._line))()

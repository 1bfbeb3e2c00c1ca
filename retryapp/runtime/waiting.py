"""Why records wait, for pages and metrics: the causes of those that are due next.

Tables count no causes of what waits: each failure would pay for it. So a bounded number of rows is read when somebody
looks, and what was found is kept for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from retryapp.core.causes import CauseCount
from retryapp.core.errors import RetryAppError
from retryapp.lookup.causes import causes_of
from retryapp.ports import Clock, PendingEntry

LOOK_ROWS: Final = 1_000
"""Rows of a worker that are looked at: they take some 50 ms of a thread."""
KEEP_S: Final = 10.0


class WaitingCauses:
    """Of each handler; `page` returns the rows of one that are due next, at most so many."""

    def __init__(self, page: Callable[[str, int], Sequence[PendingEntry]], clock: Clock) -> None:
        self._page = page
        self._clock = clock
        self._known: dict[str, tuple[float, list[CauseCount]]] = {}

    def of(self, main: str) -> list[CauseCount]:
        """Return the causes, the most frequent first. Blocks: call it in a thread."""
        known, now_s = self._known.get(main), self._clock.monotonic_s()
        if known is None or now_s - known[0] > KEEP_S:
            with suppress(RetryAppError):  # a table was closed while it was read
                self._known[main] = now_s, causes_of(entry.value for entry in self._page(main, LOOK_ROWS))
        return self._known.get(main, (0.0, []))[1]

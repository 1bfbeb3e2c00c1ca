"""Count and bound the runs of a handler that were given up and go on.

A thread cannot be stopped, and a coroutine may refuse its cancellation. Such a run is an orphan: its record is settled
(or will be read again) and its outcome ignored. At the limit no new run of the handler begins until one has ended; in
an ordered handler, none of the orphan's sequence. One that goes on long after its time-out hangs: once as many as the
limit do, or one of a sequence, only a new process helps. Before its time-out it is as sound as any: its session ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from retryapp.core.text import counted

MIN_ORPHANS: Final = 16
"""Least limit however few run at once: one record that hangs at every attempt must not stop the others."""
HUNG_S: Final = 60.0
"""How long after its time-out an orphan hangs; if it was given up after that, since then."""


class Orphans:
    """The orphans of one handler on one worker. Used in the event loop's thread only."""

    def __init__(self, limit: int, *, ordered: bool = False) -> None:
        self.limit = limit
        """No new run begins while there are this many; runs that go on then may join them."""
        self.total = 0
        self.on_hung: Callable[[], None] = lambda: None
        """Called when as many as the limit hang; in an ordered handler, whenever one does."""
        self._ordered = ordered
        self._runs: dict[asyncio.Future[Any], tuple[str, ...]] = {}
        """With the names of their records: of several, where the function takes lists."""
        self._timers: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        """Of the runs that do not hang yet."""
        self.room = asyncio.Event()
        """Set while a new run may begin."""
        self.room.set()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def full(self) -> bool:
        """Tell whether no new run may begin."""
        return len(self._runs) >= self.limit

    @property
    def problem(self) -> str | None:
        """What is wrong if no run, or none of a sequence, may begin, with the records whose runs go on; else None."""
        if not self.full and not (self._ordered and self._runs):
            return None
        what = "no run can begin" if self.full else "no later record of the same key or partition can begin"
        return f"{what}: {counted(len(self), 'run')} given up and going on: {', '.join(chain(*self._runs.values()))}"

    def adopt(self, run: asyncio.Future[Any], *names: str, left_s: float = 0.0) -> None:
        """Count a run that was given up until it ends: names of its records, and what is left of its time."""
        self.total += 1
        self._runs[run] = names
        self._timers[run] = asyncio.get_running_loop().call_later(max(0.0, left_s) + HUNG_S, self._hangs, run)
        run.add_done_callback(self._ended)
        if self.full:
            self.room.clear()

    def of(self, name: str) -> asyncio.Future[Any] | None:
        """Return the run of a record that goes on, or None."""
        return next((run for run, names in self._runs.items() if name in names), None)

    def _hangs(self, run: asyncio.Future[Any]) -> None:
        del self._timers[run]
        if self._ordered or len(self._runs) - len(self._timers) == self.limit:
            self.on_hung()

    def _ended(self, run: asyncio.Future[Any]) -> None:
        self._runs.pop(run, None)
        if (timer := self._timers.pop(run, None)) is not None:
            timer.cancel()
        if not run.cancelled():
            run.exception()  # looked at: asyncio complains of errors that nobody saw
        if not self.full:
            self.room.set()

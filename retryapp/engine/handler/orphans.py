"""Count and bound the runs of a handler that were given up and go on.

A thread cannot be stopped, and a coroutine may refuse its cancellation. Such a run is an orphan: its record is settled
(or will be read again) and its outcome ignored. At the limit no new run of the handler begins until one has ended; in
an ordered handler, none of the orphan's sequence. If that takes too long, only a new process helps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

MIN_ORPHANS: Final = 16
"""Least limit whatever the `concurrency`: one record that hangs at every attempt must not stop the others."""
HUNG_S: Final = 60.0
"""How long a handler may be full, or a sequence wait for an orphan, before `on_hung` is called. The runs are past their
time-out already."""


class Orphans:
    """The orphans of one handler on one worker. Used in the event loop's thread only."""

    def __init__(self, limit: int, *, ordered: bool = False) -> None:
        self.limit = limit
        """No new run begins while there are this many; up to ``limit - 1 + 2 * concurrency`` may come together."""
        self.total = 0
        self.on_hung: Callable[[], None] = lambda: None
        self._ordered = ordered
        self._runs: dict[asyncio.Future[Any], tuple[str, ...]] = {}
        """With the names of their records: of several, where the function takes lists."""
        self._timers: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        """In an ordered handler, of each run."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

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
        return f"{what}: {len(self)} hang past their time-out: {', '.join(chain(*self._runs.values()))}"

    @property
    def waiting(self) -> int:
        """Runners that wait for an orphan to end, while there are records."""
        return len(self._waiting)

    def adopt(self, run: asyncio.Future[Any], *names: str) -> None:
        """Count a run that was given up until it ends; `names` are those of its records."""
        self.total += 1
        self._runs[run] = names
        run.add_done_callback(self._ended)
        loop = asyncio.get_running_loop()
        if self._ordered:
            self._timers[run] = loop.call_later(HUNG_S, lambda: self.on_hung())
        if self.full and self._timer is None:
            self._timer = loop.call_later(HUNG_S, lambda: self.on_hung())

    def of(self, name: str) -> asyncio.Future[Any] | None:
        """Return the run of a record that goes on, or None."""
        return next((run for run, names in self._runs.items() if name in names), None)

    async def room(self) -> None:
        """Wait until a new run may begin."""
        while self.full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)

    def _ended(self, run: asyncio.Future[Any]) -> None:
        self._runs.pop(run, None)
        if (timer := self._timers.pop(run, None)) is not None:
            timer.cancel()
        if not run.cancelled():
            run.exception()  # looked at: asyncio complains of errors that nobody saw
        if not self.full:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.set_result(None)

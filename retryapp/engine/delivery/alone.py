"""A lock of one worker: a record runs alone, or groups of records run.

Each of them may kill the worker. Whoever ran alone then is held responsible, so nothing else that is suspect may run
meanwhile, on any partition. The others of a group count for nothing, so groups of several partitions run together.

What is not suspect yet goes on beside them, and may kill the worker, too. So a record that is dead if the worker dies
once more runs in a still worker: nothing else begins there, on any partition, and what has begun has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

STILL_S: Final = 30.0
"""Longest wait for what runs already. What takes longer runs on, and nothing is held back for it."""


class AloneLock:
    """Held by one holder that is alone, or by any number that are not; in the order in which they asked."""

    def __init__(self) -> None:
        self.still = False
        """Nothing begins but the record that is alone: others `wait`."""
        self._running = 0
        """Runs of the worker that have begun and not ended."""
        self._ended = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._alone = False
        self._others = 0
        self._queue: deque[tuple[bool, asyncio.Future[None]]] = deque()

    def begun(self) -> None:
        """Count a run that begins."""
        self._running += 1

    def ended(self) -> None:
        """Count the end of a run that has begun."""
        self._running -= 1
        self._ended.set()

    def wait(self, submit: Callable[[], None]) -> None:
        """Submit a run once others may begin again."""
        self._waiting.append(submit)

    @asynccontextmanager
    async def held(self, *, alone: bool, still_s: float = 0.0) -> AsyncIterator[None]:
        """Hold it while this is entered; one that is alone may have the worker be still for as long as `still_s`."""
        admitted = asyncio.get_running_loop().create_future()
        self._queue.append((alone, admitted))
        self._admit()
        try:
            await admitted
            if still_s:
                await self._be_still(still_s)
            yield
        finally:
            if not admitted.done() or admitted.cancelled():
                self._queue = deque(entry for entry in self._queue if entry[1] is not admitted)
            elif alone:
                self._alone = False
                self._go_on()
            else:
                self._others -= 1
            self._admit()

    async def _be_still(self, still_s: float) -> None:
        """Let nothing begin, and wait for what runs."""
        self.still = True
        with suppress(TimeoutError):
            async with asyncio.timeout(STILL_S):
                while self._running:
                    self._ended.clear()
                    await self._ended.wait()
        if self._running:
            self._go_on()
        else:
            self._timer = asyncio.get_running_loop().call_later(still_s, self._go_on)

    def _go_on(self) -> None:
        self.still = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for submit in waiting:
            submit()

    def _admit(self) -> None:
        while self._queue and not self._alone:
            alone, admitted = self._queue[0]
            if alone and self._others:
                return
            self._queue.popleft()
            if admitted.cancelled():
                continue
            admitted.set_result(None)
            self._alone = alone
            self._others += not alone

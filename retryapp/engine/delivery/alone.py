"""A lock of one worker: a record runs alone, or groups of records run.

Each of them may kill the worker. Whoever ran alone then is held responsible, so nothing else that is suspect may run
meanwhile, on any partition. The others of a group count for nothing, so groups of several partitions run together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AloneLock:
    """Held by one holder that is alone, or by any number that are not; in the order in which they asked."""

    def __init__(self) -> None:
        self._alone = False
        self._others = 0
        self._queue: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def held(self, *, alone: bool) -> AsyncIterator[None]:
        """Hold it while this is entered."""
        admitted = asyncio.get_running_loop().create_future()
        self._queue.append((alone, admitted))
        self._admit()
        try:
            await admitted
            yield
        finally:
            if not admitted.done() or admitted.cancelled():
                self._queue = deque(entry for entry in self._queue if entry[1] is not admitted)
            elif alone:
                self._alone = False
            else:
                self._others -= 1
            self._admit()

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

"""Threads of the pages: some that compute, and others, a few at a time, for what waits: commands, jobs, topics.

None is one of the event loop's: handlers may hold all of those. A process that ends waits for none of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

from retryapp.web.errors import SOON, PageError

P = ParamSpec("P")
T = TypeVar("T")


class Daemons(Executor):
    """Runs calls in `most` threads, on which the end of a process does not wait, unlike on those of Python's pools."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._started = 0
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    @override
    def submit(self, call: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> Future[T]:
        """Call in a thread, after those that came before; on the event loop's thread only."""
        ended = Future[T]()
        if self._started < self._most:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._started += 1
        self._calls.put((ended, partial(call, *args, **more)))
        return ended

    def _work(self) -> None:
        while True:
            ended, call = self._calls.get()
            if ended.set_running_or_notify_cancel():
                try:
                    ended.set_result(call())
                except BaseException as exc:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
                    ended.set_exception(exc)
            del ended, call  # what they hold is not kept until the next one


_computing: Final = Daemons(4, "answers")


async def compute(call: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Call what reads tables or adds numbers up, in a thread: of hundreds of partitions it takes long."""
    return await asyncio.get_running_loop().run_in_executor(_computing, partial(call, *args, **more))


class Turns:
    """Lets `most` through at a time, and refuses the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._threads = Daemons(most, "pages")

    async def take(self, call: Callable[[], Any]) -> Any:
        """Call in a thread.

        Raises:
            PageError: 503, others go on.
        """
        if self._taken >= self._most:
            raise PageError(503, "busy", f"{self._taken} others wait for the same", "Ask again soon", SOON)
        self._taken += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._taken -= 1

    async def read(self, call: Callable[..., Any], *args: Any, seconds: float, **more: Any) -> Any:
        """Call in a thread with what tells, as the last argument, whether there is still time to go on."""
        until_s = time.monotonic() + seconds
        return await self.take(partial(call, *args, lambda: time.monotonic() < until_s, **more))

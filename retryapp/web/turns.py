"""Threads of the pages: some that compute, and others, a few at a time, for what waits: commands, jobs, topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from retryapp.runtime.machine.threads import Daemons
from retryapp.web.errors import SOON, PageError

P = ParamSpec("P")
T = TypeVar("T")


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

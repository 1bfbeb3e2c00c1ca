"""Threads of the pages and metrics: their work comes after that of records."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS: Final = 5
"""Where workers share a processor, a page that is computed doubled the p99 of lateness of 200 retries a second. The
lower its priority the less it does so, and the longer a page takes in a burst: with 5, it has a quarter of a
processor."""


class Daemons(Executor):
    """Runs calls in `most` threads of low priority, on which the end of a process does not wait.

    None is one of the event loop's: handlers may hold all of those.
    """

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
        _be_nice()
        while True:
            ended, call = self._calls.get()
            if ended.set_running_or_notify_cancel():
                try:
                    ended.set_result(call())
                except BaseException as exc:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
                    ended.set_exception(exc)
            del ended, call  # what they hold is not kept until the next one


def _be_nice() -> None:
    """Have this thread yield to others of the machine; only Linux has a niceness for each thread."""
    if sys.platform == "linux":
        me = threading.get_native_id()
        with suppress(OSError):  # where filters of system calls refuse it, as those of systemd may
            os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + _NICENESS))

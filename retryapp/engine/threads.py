"""Plain functions, each run in a daemon thread that it has for itself.

Not the event loop's executor: its few threads are shared by everything in the process, so handlers that hang would stop
what has nothing to do with them, a queued call would use up its time before it begins, and the end of the process would
wait for all of them. A run here begins at once, and never keeps a process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from retryapp.core.errors import RetryAppError


class NoThreadError(RetryAppError):
    """The system gave no further thread. Operator action: raise the limit of threads, or lower `concurrency`."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"no thread for a handler that is a plain function ({problem}): the process or its user has too many "
            f"(ulimit -u, the container's pids limit)"
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a function ended."""

    result: Any = None
    error: BaseException | None = None
    """What it raised; any exception at all, `SystemExit` and `StopIteration` too."""


class Threads:
    """Daemon threads for one handler: a run takes one that is free, or a new one; it never waits for one.

    There are as many as ran at the same time, orphans included; of those that are free again, `keep` stay for the next
    runs, so what a function keeps in a thread's locals (a connection, a session) is found again.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: list[SimpleQueue[_Job | None]] = []

    def __del__(self) -> None:
        """End the free threads."""
        for jobs in self._free:
            jobs.put(None)

    def run(self, function: Callable[..., Any], *arguments: Any, name: str) -> asyncio.Future[Ended]:
        """Run a function in a thread, at once, in a copy of the caller's context, or raise `NoThreadError`.

        The future never fails, and stays open when the loop ends first.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ended] = loop.create_future()
        jobs = self._free.pop() if self._free else _start_thread()

        def settle(how: Ended) -> None:
            if not ended.done():
                ended.set_result(how)
            if len(self._free) < self._keep:
                self._free.append(jobs)
            else:
                jobs.put(None)

        call = partial(contextvars.copy_context().run, function, *arguments)
        jobs.put(_Job(name, call, lambda how: loop.call_soon_threadsafe(settle, how)))
        return ended


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    call: Callable[[], Any]
    tell: Callable[[Ended], object]


def _start_thread() -> SimpleQueue[_Job | None]:
    jobs: SimpleQueue[_Job | None] = SimpleQueue()
    try:
        threading.Thread(target=_work, args=(jobs,), daemon=True).start()
    except RuntimeError as exc:
        raise NoThreadError(str(exc)) from exc
    return jobs


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    """Run jobs until there is None. Between two jobs it keeps no reference to either."""
    thread = threading.current_thread()
    while (job := jobs.get()) is not None:
        thread.name = job.name
        try:
            how = Ended(result=job.call())
        except BaseException as exc:  # noqa: BLE001 - the edge to user code: whatever it is, it travels as a value
            how = Ended(error=exc)
        thread.name = "retryapp-free"
        try:
            job.tell(how)
        except RuntimeError:
            return  # the loop is closed: the process ends, nobody waits for this any more
        del job, how

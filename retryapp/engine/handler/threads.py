"""Run plain functions, each in a daemon thread of its own.

Not in the event loop's executor: its few threads are shared by everything in the process, so hanging handlers would
block unrelated work, a queued call would use up its time before it begins, and the process could not end before all of
them. A run here begins at once, and never keeps a process alive.
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
    """Any exception, `SystemExit` and `StopIteration` too."""


_Job = tuple[str, Callable[[], Any], Callable[[Ended], object]]
"""Name, function, and what gets its end."""


class Threads:
    """Daemon threads for one handler: a run takes a free one or a new one, and never waits.

    `keep` free threads stay for the next runs, which find what a function keeps in thread locals (a connection).
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._free: list[SimpleQueue[_Job | None]] = []

    def __del__(self) -> None:
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
        jobs.put((name, call, lambda how: loop.call_soon_threadsafe(settle, how)))
        return ended


def _start_thread() -> SimpleQueue[_Job | None]:
    jobs: SimpleQueue[_Job | None] = SimpleQueue()
    try:
        threading.Thread(target=_work, args=(jobs,), daemon=True).start()
    except RuntimeError as exc:
        raise NoThreadError(str(exc)) from exc
    return jobs


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    """Run jobs until there is None; keep no reference to the last one."""
    thread = threading.current_thread()
    while (job := jobs.get()) is not None:
        thread.name, call, tell = job
        try:
            how = Ended(result=call())
        except BaseException as exc:  # noqa: BLE001 - the edge to user code: whatever it is, it travels as a value
            how = Ended(error=exc)
        thread.name = "retryapp-free"
        try:
            tell(how)
        except RuntimeError:
            return  # the loop is closed: the process ends
        del job, call, tell, how

"""An event loop in virtual time whose processes can be killed, stopped and continued between any two steps.

Nothing waits: when no callback is ready, time goes on to the next timer. Callbacks belong to the process whose context
they carry, so that

* a process that was killed runs no further step, not even a `finally`: as with SIGKILL;
* one that was stopped runs none until it is continued; what came for it meanwhile waits, as with SIGSTOP;
* one can be killed after any number of its steps: a crash at any await.

One thread, no system calls, no real time: the same inputs take the same course.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

BUSY_STEPS = 50_000
"""More steps than anybody has to do at one moment."""
BEGAN_S = 1_700_000_000.0
"""Epoch seconds at which every history begins."""


class Stalled(Exception):  # noqa: N818 - what became of a history, not a fault of the loop
    """Nothing is ready and no timer is set: everybody waits for ever; or they are so busy that no time passes."""


class Process:
    """What runs in a context of its own: callbacks of it run as long as it lives and is not stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped = False
        self.steps = 0
        """How many callbacks of it ran."""
        self.kill_at_step: int | None = None
        """It is killed before this step."""
        self.stop_at_step: int | None = None
        """It is stopped before this step."""
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._deferred: list[asyncio.Handle] = []

    def kill(self) -> None:
        self.dead = True
        self._deferred.clear()

    def cont(self) -> None:
        """Continue it, in the order in which things came."""
        self.stopped = False
        deferred, self._deferred = self._deferred, []
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        loop.ready_again(deferred)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process whose step runs, None outside of all."""
    return _PROCESS.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = BEGAN_S
        self.steps = 0
        self._began = 0.0, 0
        """When this moment began, and with which step."""
        self.broken: BaseException | None = None
        """What a callback has raised that nobody caught: a fault of the simulation."""
        self.set_exception_handler(self._note)

    def _note(self, _loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        if "handle" in told:  # the rest is told of tasks that nobody waits for: those of processes that are dead
            self.broken = self.broken or told.get("exception")

    def time(self) -> float:
        return self._now_s

    def ready_again(self, handles: list[asyncio.Handle]) -> None:
        """Queue callbacks that were put off."""
        self._ready.extend(handles)  # type: ignore[attr-defined]  # the base class's own queue

    def _run_once(self) -> None:
        if self.broken is not None:
            raise self.broken
        internals = cast("Any", self)
        ready, scheduled = internals._ready, internals._scheduled
        if not ready:
            while scheduled and scheduled[0]._cancelled:
                heapq.heappop(scheduled)._scheduled = False
            if not scheduled:
                raise Stalled
            self._now_s = max(self._now_s, scheduled[0]._when)
        if self._began[0] != self._now_s:
            self._began = self._now_s, self.steps
        elif self.steps - self._began[1] > BUSY_STEPS:
            raise Stalled
        limit_s = self._now_s + 1e-7
        while scheduled and scheduled[0]._when <= limit_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None:
                if process.dead:
                    continue
                if process.stop_at_step is not None and process.steps >= process.stop_at_step:
                    process.stop_at_step, process.stopped = None, True
                if process.stopped:
                    process._deferred.append(handle)
                    continue
                process.steps += 1
                if process.kill_at_step is not None and process.steps >= process.kill_at_step:
                    process.kill()
                    continue
            self.steps += 1
            handle._run()

    def abandon(self) -> None:
        """Close it over tasks that are not done, as when the machine is switched off."""
        asyncio.set_event_loop(None)  # else a `finally` that asks for a loop gets a new one; nobody closes it
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for _ in range(5):  # a `finally` may wait for something once more
                try:
                    task.get_coro().close()
                    break
                except BaseException:  # noqa: BLE001, S112 - nobody is left to be told
                    continue
        self.close()

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

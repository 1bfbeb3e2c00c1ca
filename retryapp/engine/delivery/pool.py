"""Run handlers: `concurrency` at once, each bounded in time whatever the handler does.

A runner is a task that calls handlers one after the other *in itself*: a task per record would cost more than the rest
of a delivery. A handler that cancels its task, leaves a cancellation behind or swallows one does that to its runner, so
runners are replaceable: `CANCEL_WAIT_S` after its cancellation, a run that goes on becomes an orphan together with its
runner, its record is settled without it, and a new runner takes the place.

A handler may leave context variables behind for the next one on its runner, as in any Faust agent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from typing_extensions import override

from retryapp.engine.delivery.deliver import deliver, delivery_of, timed_out
from retryapp.engine.delivery.run import GivenUpError, Run, RunAbortedError, RunOwner, Watch
from retryapp.engine.handler.handler import abandon

CANCEL_WAIT_S: Final = 2.0
"""How long a cancelled handler may clean up before it becomes an orphan."""
BURST: Final = 64
"""Handlers that end without waiting, before a runner yields to the event loop."""


class DeliveryPool(Watch):
    """Runs handlers for all partitions of a handler. One pool per share of concurrency."""

    def __init__(self, concurrency: int, name: str) -> None:
        self._concurrency = concurrency
        self._name = name
        self._queues: dict[RunOwner, deque[Run]] = {}
        self._turns: deque[RunOwner] = deque()
        """Owners with queued runs, in the order of their turns: one with many must not delay the others."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._open: dict[Run, None] = {}
        """Runs, oldest first; all have the same time-out, so the first one's ends first."""
        self._cancelled: dict[Run, float] = {}
        """Runs that are being cancelled, with their deadlines."""
        self._timer: asyncio.TimerHandle | None = None
        self.stopping = False

    def start(self) -> None:
        """Start the runners."""
        self.stopping = False
        for _ in range(self._concurrency):
            self._add_runner()

    async def stop(self, wait_s: float = CANCEL_WAIT_S) -> None:
        """End all runs; those that go on after `wait_s` become orphans."""
        self.stopping = True
        runners = set(self._runners)
        for runner in runners:
            runner.cancel()
        if runners:
            await asyncio.wait(runners, timeout=wait_s)
        for run in [*self._open, *self._cancelled]:
            if run.task is not None and not run.task.done():
                self._give_up(run)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queues.clear()
        self._turns.clear()
        self._runners.clear()

    def submit(self, run: Run) -> None:
        """Queue a run; bounded by the windows of the partitions."""
        run.watch = self
        queue = self._queues.get(run.owner)
        if queue is None:
            queue = self._queues[run.owner] = deque()
            self._turns.append(run.owner)
        queue.append(run)
        if self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)

    # -- `run.Watch` --------------------------------------------------------------------------------------------

    @override
    def begun(self, run: Run, timeout_s: float) -> None:
        run.begun = True
        deadline_s = run.deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._open[run] = None
        if self._timer is None:
            self._arm(deadline_s)

    @override
    async def over(self, run: Run) -> None:
        self._forget(run)
        if run.given_up:
            raise GivenUpError
        if run.task is not None and run.task.cancelling():
            await settle_cancellation(run.task)
            self._forget(run)  # cancelled in that very moment: its runner lives, and must not be given up later
            if self.stopping:
                raise asyncio.CancelledError
        if run.aborted:
            raise RunAbortedError

    @override
    def cancel(self, run: Run) -> None:
        self._open.pop(run, None)
        if run.task is not None and run not in self._cancelled:
            run.task.cancel()
            self._cancelled[run] = asyncio.get_running_loop().time() + CANCEL_WAIT_S
            self._arm(self._cancelled[run])

    # -- watching -----------------------------------------------------------------------------------------------

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._open and (run := next(iter(self._open))).deadline_s <= now_s:
            run.overdue = True
            self.cancel(run)
        while self._cancelled and self._cancelled[run := next(iter(self._cancelled))] <= now_s:
            self._give_up(run)
        if self._cancelled:
            self._arm(next(iter(self._cancelled.values())))
        if self._open:
            self._arm(next(iter(self._open)).deadline_s)

    def _forget(self, run: Run) -> None:
        self._open.pop(run, None)
        self._cancelled.pop(run, None)

    def _give_up(self, run: Run) -> None:
        """Make a run an orphan together with its runner, and settle its record without it."""
        self._forget(run)
        run.given_up = True
        if run.outbox is not None:
            run.outbox.close()  # what it publishes from here on belongs to no record
        if run.task is not None:
            self._runners.discard(run.task)
            if run.begun:
                abandon(run.context.handler, run.task, delivery_of(run))
        if not self.stopping:
            self._add_runner()
        outcome, fault = None, None
        if run.overdue and not run.aborted:
            try:
                outcome = timed_out(run)
            except Exception as exc:  # noqa: BLE001 - the owner gets every fault of ours
                fault = exc
        run.owner.ended(run, outcome, fault)

    # -- running ------------------------------------------------------------------------------------------------

    def _add_runner(self) -> None:
        self._runners.add(asyncio.create_task(self._work(), name=self._name))

    async def _work(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a runner is a task")
        in_a_row = 0
        while True:
            try:
                if not self._turns:
                    in_a_row = 0
                    await self._wait_for_work()
                    continue
                if in_a_row >= BURST:
                    in_a_row = 0
                    await asyncio.sleep(0)
                    continue
                run = self._next()
                if run.aborted or not run.owner.alive(run):
                    run.owner.ended(run, None, None)
                    continue
                in_a_row += 1
                run.task = task
                run.owner.begun(run)
                await _carry(run)
            except GivenUpError:
                return
            except asyncio.CancelledError:
                if self.stopping:
                    raise
                await settle_cancellation(task)  # somebody kept a handler's task and cancelled it later

    def _next(self) -> Run:
        owner = self._turns.popleft()
        queue = self._queues[owner]
        run = queue.popleft()
        if queue:
            self._turns.append(owner)
        else:
            del self._queues[owner]
        return run

    async def _wait_for_work(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if waiting in self._idle:
                self._idle.remove(waiting)


async def _carry(run: Run) -> None:
    outcome, fault = None, None
    try:
        outcome = await deliver(run)
    except RunAbortedError:
        pass
    except GivenUpError:
        raise  # its owner knows already
    except asyncio.CancelledError:
        run.owner.ended(run, None, None)
        raise
    except Exception as exc:  # noqa: BLE001 - a fault of ours must not end the runner
        fault = exc
    run.owner.ended(run, outcome, fault)


async def settle_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back every cancellation of the current task, also one that the next await would raise."""
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)  # `uncancel` does not take that one back
    except asyncio.CancelledError:
        while task.cancelling():
            task.uncancel()

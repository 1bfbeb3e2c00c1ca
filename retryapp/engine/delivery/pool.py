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

from retryapp.engine.delivery.deliver import HandlerTimeoutError, is_due, outcome_of, timed_out, unpack
from retryapp.engine.delivery.delivery import close_delivery, delivery_of, open_delivery
from retryapp.engine.delivery.judge import hot_wait_s, judge
from retryapp.engine.delivery.run import GivenUpError, Outcome, Run, RunAbortedError, RunOwner
from retryapp.engine.handler.handler import abandon, call
from retryapp.engine.handler.threads import NoThreadError
from retryapp.engine.lane.rounds import ROUND_S, Rounds

CANCEL_WAIT_S: Final = 2.0
"""How long a cancelled handler may clean up before it becomes an orphan."""


class DeliveryPool:
    """Runs handlers for all partitions of a handler, in rounds of the event loop. One pool per share of concurrency.

    One of redeliveries is `behind`: it has no rounds of its own.
    """

    def __init__(self, concurrency: int, name: str, *, rounds: Rounds | None = None, behind: bool = False) -> None:
        self.rounds = rounds or Rounds()
        self._concurrency = concurrency
        self._name = name
        self._behind = behind
        self._round_end_s: float | None = None
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
        run.cancel = self._cancel
        queue = self._queues.get(run.owner)
        if queue is None:
            queue = self._queues[run.owner] = deque()
            self._turns.append(run.owner)
        queue.append(run)
        self._wake_one()

    def flush(self, _owner: RunOwner) -> bool:
        """Begin what waits for more records of a partition; tell whether there is any. Here none waits for others."""
        return False

    def forget(self, owner: RunOwner) -> None:
        """Drop the runs of an owner that have not begun: its session is over."""
        if self._queues.pop(owner, None) is not None and owner in self._turns:
            self._turns.remove(owner)

    def _wake_one(self) -> None:
        if self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self, run: Run, timeout_s: float) -> None:
        run.begun = True
        deadline_s = run.deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._open[run] = None
        if self._timer is None:
            self._arm(deadline_s)

    async def _over(self, run: Run) -> None:
        """Stop watching a run, and take back its cancellations.

        Raises `GivenUpError` when it is too late, `RunAbortedError` when its outcome does not count.
        """
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

    def _ends(self, run: Run) -> bool:
        """Tell whether we end a run: else a cancellation of its task is its handler's own."""
        return run.overdue or run.aborted or run.given_up or self.stopping

    def _cancel(self, run: Run) -> None:
        self._open.pop(run, None)
        if run.task is not None and run not in self._cancelled:
            run.task.cancel()
            self._cancelled[run] = asyncio.get_running_loop().time() + CANCEL_WAIT_S
            self._arm(self._cancelled[run])

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
            self._cancel(run)
        while self._cancelled and self._cancelled[run := next(iter(self._cancelled))] <= now_s:
            self._give_up(run)
        if self._cancelled:
            self._arm(next(iter(self._cancelled.values())))
        if self._open:
            self._arm(next(iter(self._open)).deadline_s)

    def _forget(self, run: Run) -> None:
        self._open.pop(run, None)
        if self._cancelled:
            self._cancelled.pop(run, None)

    def _give_up(self, run: Run) -> None:
        """Make a run an orphan together with its runner, and settle its record without it."""
        self._forget(run)
        run.given_up = True
        ended = run.leave()
        for each in ended:
            if each.outbox is not None:
                each.outbox.close()  # what it publishes from here on belongs to no record
        if run.task is not None:
            self._runners.discard(run.task)
            abandon(run.context.handler, run.task, [delivery_of(each) for each in ended or [run]], run.deadline_s)
        if not self.stopping:
            self._add_runner()
        for each in ended:
            outcome, fault = None, None
            if run.overdue and not run.aborted:
                try:
                    outcome = timed_out(each)
                except Exception as exc:  # noqa: BLE001 - the owner gets every fault of ours
                    fault = exc
            each.end(outcome, fault)

    # -- running ------------------------------------------------------------------------------------------------

    def _add_runner(self) -> None:
        self._runners.add(asyncio.create_task(self._work(), name=self._name))

    async def _work(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a runner is a task")
        while True:
            try:
                if not self._turns:
                    await self._wait_for_work()
                    continue
                queue = self._queues[self._turns[0]]
                if queue and (orphans := queue[0].context.handler.orphans).full:  # whether it may begin is asked then
                    await orphans.room.wait()
                    continue
                if self._behind and not self.rounds.goes_on(self):
                    await self.rounds.turn(self)
                    continue
                if not self._behind and self._round_is_over():
                    await asyncio.sleep(0)
                    continue
                if (run := self._next(task)) is not None:
                    await self._carry(run)
            except GivenUpError:
                return
            except asyncio.CancelledError:
                if self.stopping:
                    raise
                await settle_cancellation(task)  # somebody kept a handler's task and cancelled it later

    async def _carry(self, run: Run) -> None:
        """Deliver a record once, and tell its owner what it has come to."""
        outcome: Outcome | None = None
        fault = None
        try:
            outcome = unpack(run)
            if outcome is None and is_due(run):  # else the clock was set back or is in doubt: the row waits on
                outcome = outcome_of(run, await self._call(run))
        except RunAbortedError:
            pass
        except GivenUpError:
            raise  # its owner knows already
        except asyncio.CancelledError:
            run.end(None)
            raise
        except Exception as exc:  # noqa: BLE001 - a fault of ours must not end the runner
            fault = exc
        run.end(outcome, fault)

    async def _call(self, run: Run) -> BaseException | None:
        """Decode the value and call the handler, bounded in time, in no transaction; return what was raised.

        With hot retries it is called again, in the same time.
        """
        context = run.context
        handler = context.handler
        run.started_s = context.clock.monotonic_s()
        if run.metadata is not None or handler.wants_delivery:
            run.started_ms = context.clock.wall_ms()
        self._watch(run, handler.timeout_s)
        error: BaseException | None
        while True:
            error = None
            try:
                value = handler.decode(run.shown.value)
                await call(handler, value, open_delivery(run) if handler.wants_delivery else None, run.deadline_s)
                if run.outbox is not None:
                    if run.task is not None and run.task.cancelling() and not self._ends(run):
                        await settle_cancellation(run.task)  # a look at a topic would raise it
                    await close_delivery(run)
            except NoThreadError:
                await self._over(run)
                raise
            except BaseException as exc:  # noqa: BLE001 - the edge to user code: even SystemExit is the record's failure
                error = exc
                if run.outbox is not None:
                    run.outbox.drop()
            if error is None or not handler.tries_in_place or not await self._tries_again(run, error):
                break
            run.try_again()
        handler.durations.note(context.clock.monotonic_s() - run.started_s)
        try:
            await self._over(run)
            return HandlerTimeoutError(handler) if run.overdue else error
        finally:
            del error  # this frame is in its traceback: a ring, which only the garbage collector would take apart

    async def _tries_again(self, run: Run, error: BaseException) -> bool:
        """Wait for the next try of a delivery; tell whether there is one."""
        cancelled = self._ends(run) or (run.task is not None and run.task.cancelling())
        wait_s, loop = None if cancelled else hot_wait_s(run, error), asyncio.get_running_loop()
        if wait_s is None or loop.time() + wait_s >= run.deadline_s:
            return False
        run.pause = loop.create_future()
        timer = loop.call_later(wait_s, run.end_pause)
        try:
            await run.pause
        except asyncio.CancelledError:
            return False  # `_over` knows whose it was
        finally:
            timer.cancel()
            run.pause = None
        context = run.context
        if run.last_try or context.handler.orphans.full:
            return False
        if context.pace.is_out(judge(error, run, context.clock.wall_ms()).circuit):
            return False
        run.aborted = run.aborted or not run.owner.alive(run)
        return not run.aborted

    def _round_is_over(self) -> bool:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._round_end_s is None:
            self._round_end_s = now_s + ROUND_S
            self.rounds.came_first(now_s)
            loop.call_soon(self._end_round)
        return now_s >= self._round_end_s

    def _end_round(self) -> None:
        self._round_end_s = None

    def _next(self, task: asyncio.Task[Any]) -> Run | None:
        """Return the run whose turn it is, for a runner; None where it does not begin now."""
        owner = self._turns.popleft()
        queue = self._queues[owner]
        run = queue.popleft()
        if queue:
            self._turns.append(owner)
        else:
            del self._queues[owner]
        return run if self._begins(run, task) else None

    @staticmethod
    def _begins(run: Run, task: asyncio.Task[Any]) -> bool:
        owner = run.owner
        try:
            if run.aborted or not owner.alive(run):
                run.end(None)
                return False
            if owner.waits(run):
                return False
            run.task = task
            owner.begun(run)
        except Exception as exc:  # noqa: BLE001 - a fault of ours must not end the runner
            owner.broke(run, exc)
            return False
        return True

    async def _wait_for_work(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if waiting in self._idle:
                self._idle.remove(waiting)


async def settle_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back every cancellation of the current task, also one that the next await would raise."""
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)  # `uncancel` does not take that one back
    except asyncio.CancelledError:
        while task.cancelling():
            task.uncancel()

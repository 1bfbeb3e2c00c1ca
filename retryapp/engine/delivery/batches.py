"""Run handlers that take lists of records: up to so many, or as many as came in a time, of one partition.

Life of a batch:

1. The queue of a partition has enough records, or its first one has waited for long enough. A record that has to run
   alone is a batch of its own, at once: a suspect, and one whose last batch took too long.
2. The function is called. What it marks (`Delivery.fail`) has failed, the others are done, each in its own turn.
3. It raises, and does not say which record failed. The halves are tried apart, breadth first, and what fails alone has
   failed. Three parts that fail alike with nothing going well in between are no one's fault: all fail alike, unless
   that is the end of a record.
4. The time is up, one deadline for all these calls: what has no outcome yet has failed, and runs alone next.

A drain or the end of the session ends this between two calls; what has no outcome then has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from retryapp.core.batch import Batch
from retryapp.engine.delivery.deliver import HandlerTimeoutError, is_due, outcome_of, unpack
from retryapp.engine.delivery.delivery import close_delivery, open_delivery
from retryapp.engine.delivery.judge import cause_of, is_last
from retryapp.engine.delivery.pool import CANCEL_WAIT_S, DeliveryPool, settle_cancellation
from retryapp.engine.delivery.run import GivenUpError, Outcome, Run, RunAbortedError, RunOwner
from retryapp.engine.handler.handler import Handler, call
from retryapp.engine.handler.threads import NoThreadError
from retryapp.engine.lane.rounds import ROUND_S, Rounds

ALIKE: Final = 3
"""So many parts of a batch that fail alike fail for a cause that is not theirs."""


@dataclass(slots=True, eq=False)
class BatchRun(Run):
    """The run of several records of a partition; it is watched and cancelled as one."""

    open: dict[Run, None] = field(default_factory=dict)
    """Those that have no outcome yet."""

    def settle_one(self, run: Run, outcome: Outcome | None) -> None:
        """End a record's run; without an outcome it is delivered again."""
        del self.open[run]
        run.end(outcome)

    @override
    def leave(self) -> list[Run]:
        runs, self.open = [*self.open], {}
        return runs


@dataclass(slots=True, eq=False)
class _Part:
    """Records of one call."""

    runs: list[Run]
    whole: _Part | None = None
    """The part that it is a half of."""


class _Share:
    """What a long list may take of a round of the event loop at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + ROUND_S

    async def over(self) -> bool:
        """Let others go on if it is used up; tell whether they have: the list may be cancelled since."""
        if self._loop.time() < self._end_s:
            return False
        with suppress(asyncio.CancelledError):  # whose it is, is asked then
            await asyncio.sleep(0)
        self._end_s = self._loop.time() + ROUND_S
        return True


class BatchPool(DeliveryPool):
    """Gathers records by partition, and runs them together."""

    def __init__(
        self, batch: Batch, concurrency: int, name: str, *, rounds: Rounds | None = None, behind: bool = False
    ) -> None:
        super().__init__(concurrency, name, rounds=rounds, behind=behind)
        self._size = batch.size
        self._wait_s = batch.wait_ms / 1000
        self._gathering: dict[RunOwner, asyncio.TimerHandle] = {}

    # -- gathering ----------------------------------------------------------------------------------------------

    @override
    def submit(self, run: Run) -> None:
        queue = self._queues.get(run.owner)
        if queue is None:
            queue = self._queues[run.owner] = deque()
        queue.append(run)
        self._look(run.owner)

    @override
    def flush(self, owner: RunOwner) -> bool:
        waits = owner in self._gathering
        if waits:
            self._begin(owner)
        return waits

    @override
    def forget(self, owner: RunOwner) -> None:
        timer = self._gathering.pop(owner, None)
        if timer is not None:
            timer.cancel()
        super().forget(owner)

    @override
    async def stop(self, wait_s: float = CANCEL_WAIT_S) -> None:
        for timer in self._gathering.values():
            timer.cancel()
        self._gathering.clear()
        await super().stop(wait_s)

    def _look(self, owner: RunOwner) -> None:
        """Begin a batch if there are enough records, else begin to wait for more."""
        queue = self._queues[owner]
        if owner in self._turns:
            return
        if len(queue) >= self._size or queue[0].alone:
            self._begin(owner)
        elif owner not in self._gathering:
            loop = asyncio.get_running_loop()
            self._gathering[owner] = loop.call_later(self._wait_s, self._begin, owner)

    def _begin(self, owner: RunOwner) -> None:
        timer = self._gathering.pop(owner, None)
        if timer is not None:
            timer.cancel()
        self._turns.append(owner)
        self._wake_one()

    @override
    def _next(self, task: asyncio.Task[Any]) -> Run | None:
        owner = self._turns.popleft()
        queue, runs = self._queues[owner], list[Run]()
        while queue and len(runs) < self._size and not (runs and (runs[-1].alone or queue[0].alone)):
            run = queue.popleft()
            if self._begins(run, task):
                runs.append(run)
        if queue:
            self._look(owner)
        elif owner not in self._turns and owner not in self._gathering:  # it may have submitted others meanwhile
            del self._queues[owner]
        return self._together(runs) if runs else None

    def _together(self, runs: list[Run]) -> BatchRun:
        first = runs[0]
        batch = BatchRun(first.owner, first.context, first.record, session=first.session, open=dict.fromkeys(runs))
        batch.task, batch.cancel = first.task, self._cancel
        for run in runs:
            run.cancel = lambda _run: batch.abort()
        return batch

    # -- running ------------------------------------------------------------------------------------------------

    @override
    async def _carry(self, run: Run) -> None:
        fault = None
        try:
            if isinstance(run, BatchRun):
                await self._deliver_all(run)
        except RunAbortedError:
            pass
        except GivenUpError:
            raise  # its owner knows already
        except asyncio.CancelledError:
            self._leave(run, None)
            raise
        except Exception as exc:  # noqa: BLE001 - a fault of ours must not end the runner
            fault = exc
            self._forget(run)
        self._leave(run, fault)

    def _leave(self, batch: Run, fault: Exception | None) -> None:
        for run in batch.leave():
            run.end(None, fault)
            fault = None  # one is enough: the lane opens again

    async def _deliver_all(self, batch: BatchRun) -> None:
        """Give each record its outcome, or raise `RunAbortedError` or `GivenUpError` with those that have none left."""
        handler, clock, share = batch.context.handler, batch.context.clock, _Share()
        for run in [*batch.open]:
            if (buried := unpack(run)) is not None:
                batch.settle_one(run, buried)
            elif not is_due(run):
                batch.settle_one(run, None)
            if await share.over():
                await self._over(batch)
        if not batch.open:
            return
        started_s, started_ms = clock.monotonic_s(), clock.wall_ms()
        mask = handler.mask
        free = None if mask is None else mask.freeing([run.shown for run in batch.open])
        for run in batch.open:
            run.started_s, run.started_ms, run.begun, run.free = started_s, started_ms, True, free
        self._watch(batch, handler.timeout_s)
        try:
            error = await self._call_parts(batch)
        except NoThreadError:
            await self._over(batch)
            raise
        await self._over(batch)
        if self.stopping:
            raise asyncio.CancelledError
        if batch.overdue:
            error = HandlerTimeoutError(handler)
        if error is not None:
            await self._fail_all(batch, error)

    async def _fail_all(self, batch: BatchRun, error: BaseException) -> None:
        """Have all that are left fail with an error."""
        share = _Share()
        for run in [*batch.open]:
            batch.settle_one(run, outcome_of(run, error))
            if await share.over():
                await self._over(batch)

    async def _call_parts(self, batch: BatchRun) -> BaseException | None:
        """Call the function with all records, and with halves of what it raises for, until each has its outcome.

        Return the error that is that of all that are left, if there is one.
        """
        parts, failed, spared = deque([_Part([*batch.open])]), dict[_Part, str](), False
        while parts:
            part = parts.popleft()
            error = await self._try(batch, part)
            if await self._is_over(batch):
                return None
            if error is None:
                failed.clear()
                if not await self._close_all(batch, part.runs):
                    return None
            else:
                failed.pop(part.whole or part, None)
                failed[part] = cause = cause_of(part.runs[0], error) or ""
                if cause and not spared and [*failed.values()].count(cause) >= ALIKE:
                    spared = any(is_last(run, error) for run in batch.open)
                    if not spared:
                        return error
                if len(part.runs) == 1:
                    batch.settle_one(part.runs[0], outcome_of(part.runs[0], error))
                else:
                    middle = len(part.runs) // 2
                    parts += _Part(part.runs[:middle], part), _Part(part.runs[middle:], part)
                error = None  # newer Pythons link its frames to this one: they would keep each other
            if parts and not batch.owner.alive(batch):
                batch.aborted = True
                break
        return None

    async def _try(self, batch: BatchRun, part: _Part) -> BaseException | None:
        """Call the function once; return what it raised. What cannot be decoded is no part of the call."""
        handler, clock, values, runs = batch.context.handler, batch.context.clock, [], list[Run]()
        share = _Share()
        for run in part.runs:
            if await share.over() and await self._is_over(batch):
                return None
            try:
                values.append(handler.decode(run.shown.value))
            except BaseException as exc:  # noqa: BLE001 - the edge to user code, as in `DeliveryPool._call`
                batch.settle_one(run, outcome_of(run, exc))
                continue
            if part.whole is not None:
                run.try_again()
            runs.append(run)
        part.runs = runs
        if not runs:
            return None
        deliveries = [open_delivery(run) for run in runs] if handler.wants_delivery else []
        began_s = clock.monotonic_s()
        try:
            await call(handler, values, deliveries or None, batch.deadline_s)
        except NoThreadError:
            raise
        except BaseException as exc:  # noqa: BLE001 - the edge to user code: even SystemExit is a failure of records
            for run in runs:
                if run.outbox is not None:
                    run.outbox.drop()
            return exc
        finally:
            handler.durations.note(clock.monotonic_s() - began_s)
            for run in runs:
                if run.outbox is not None:
                    run.outbox.close()
        return None

    async def _close_all(self, batch: BatchRun, runs: list[Run]) -> bool:
        """Give each record of a call that went well its outcome; tell whether there was time."""
        share = _Share()
        for run in runs:
            error = None
            if run.outbox is not None and not run.outbox.empty:
                error = await _closed(run)
                if await self._is_over(batch):
                    return False
            batch.settle_one(run, outcome_of(run, error))
            error = None  # newer Pythons link its frames to this one: they would keep each other
            if await share.over() and await self._is_over(batch) and (batch.aborted or batch.given_up or self.stopping):
                return False  # a time-out alone comes too late: the call has ended
        return not batch.overdue

    async def _is_over(self, batch: BatchRun) -> bool:
        """Tell whether no outcome counts any more; take back cancellations that are nobody's."""

        def over() -> bool:
            return batch.overdue or batch.aborted or batch.given_up or self.stopping

        if not over() and batch.task is not None and batch.task.cancelling():
            await settle_cancellation(batch.task)
        return over()


async def _closed(run: Run) -> BaseException | None:
    """Close what a record's handler had, and return what it has failed with."""
    try:
        await close_delivery(run)
    except BaseException as exc:  # noqa: BLE001 - what somebody marked it with may be anything
        return exc
    return None


def make_pools(handler: Handler, rounds: Rounds | None = None) -> tuple[DeliveryPool, DeliveryPool]:
    """Return a handler's pools: of first deliveries, and of redeliveries, which go behind them; all share `rounds`."""
    rounds = rounds or Rounds()

    def make(name: str, concurrency: int, *, behind: bool = False) -> DeliveryPool:
        name = f"{name}-{handler.main}"
        if handler.batch is None:
            return DeliveryPool(concurrency, name, rounds=rounds, behind=behind)
        return BatchPool(handler.batch, concurrency, name, rounds=rounds, behind=behind)

    first = make("deliver", handler.concurrency)
    return first, make("redeliver", handler.max_concurrent or handler.concurrency, behind=True)

"""One partition of one handler: its runs, over the sessions of one lane, for the time of an assignment.

Between two sessions nothing is delivered: running handlers are given up, their outcomes ignored, and the next session
delivers their records again (`engine.partition.session`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from typing_extensions import override

from retryapp.core.lane_errors import MembershipLapsedError
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run, RunOwner
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.commands import Commands
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.session import PROGRESS_MS, Delivered, Session
from retryapp.ports import TopicPartition

ABORT_WAIT_S = 2.0
"""Longest wait of a drain for handlers that it has given up."""


class PartitionEngine(RunOwner):
    """Delivers the records of one partition."""

    def __init__(
        self,
        *,
        context: DeliveryContext,
        partition: int,
        first: DeliveryPool,
        again: DeliveryPool,
        wanted: Callable[[TopicPartition], None],
        emit: Callable[[TopicPartition, int, list[Delivered]], None] | None = None,
        given_up: GivenUp | None = None,
        progress_ms: int = PROGRESS_MS,
    ) -> None:
        self.context = context
        self.partition = partition
        self.lane: Lane
        self.session: Session | None = None
        topology = context.handler.topology
        self._main = TopicPartition(topology.main, partition)
        self.rows = TopicPartition(topology.retry_topics[0], partition)
        """Under this name due rows go to their agent."""
        self._emit = emit or self.accept
        self._first = first
        self._again = again
        self._wanted = partial(wanted, self._main)
        self._draining = False
        self._running: dict[Run, None] = {}
        """In the order in which they began."""
        self._former: dict[bytes, Run | None] = {}
        """Records whose runs of ended sessions go on, and the runs of this session that wait for these."""
        self._settled = asyncio.Event()
        self._given_up = given_up or GivenUp()
        self._progress_ms = progress_ms

    # -- session ------------------------------------------------------------------------------------------------

    @property
    def sources(self) -> tuple[TopicPartition, ...]:
        """Partitions whose records are taken in."""
        return (self._main,)

    @property
    def commands(self) -> Commands | None:
        """Of the session; None without one."""
        return None if self.session is None else self.session.commands

    @property
    def in_flight(self) -> int:
        """Records taken in, and rows claimed, that are not settled."""
        return 0 if self.session is None else self.session.in_flight

    @property
    def running(self) -> int:
        """Records in handlers now: no others of those in flight."""
        return len(self._running)

    @property
    def begun_rows(self) -> Collection[bytes]:
        """Keys of the due rows that are being delivered; those that wait for a runner are not among them."""
        claims = () if self.session is None else [*self.session.scheduler.claimed.values()]
        return {claim.key for claim in claims if claim.begun or claim.changing}

    @property
    def release_lag_ms(self) -> int:
        """Age of the oldest record in flight, for which the committed offset waits; 0 without any."""
        oldest_ms = None if self.session is None else self.session.window.oldest_ms
        return 0 if oldest_ms is None else max(0, self.context.clock.wall_ms() - oldest_ms)

    @property
    def blocked(self) -> str | None:
        """What keeps records on the main topic, for people; None: nothing."""
        return None if self.session is None else self.session.blocked

    @property
    def looked_ms(self) -> int | None:
        """When the session last scanned for due rows, epoch milliseconds; None without a session."""
        return None if self.session is None else self.session.scheduler.looked_ms

    @override
    def alive(self, run: Run) -> bool:
        if (session := self._session_of(run.session)) is None:
            return False
        if self.context.lapsed():  # stopped or cut off: another worker may own the partition
            self.lane.fail(MembershipLapsedError(self.lane.name))
        if self.lane.failing:  # no outcome would count, and its last transaction may take long
            session.scheduler.end()
        return not self.lane.failing

    def _session_of(self, number: int) -> Session | None:
        """Return the session of a number; None once it has ended, or drains."""
        session = self.session
        return None if session is None or session.number != number or self._draining else session

    def begin(self, number: int, starts: Mapping[TopicPartition, int], transport: LaneProtocol) -> None:
        """Begin a session; the lane has just opened."""
        self.session = Session(
            number,
            self,
            self.context,
            self.lane,
            starts[self._main],
            transport,
            main=self._main,
            first=self._first,
            again=self._again,
            emit=partial(self._emit, self.rows, number),
            wanted=self._wanted,
            given_up=self._given_up,
            progress_ms=self._progress_ms,
        )
        self.session.work()

    def end(self) -> None:
        """End the session; its outcomes are ignored."""
        session, self.session = self.session, None
        if session is not None:
            session.end()
            going = {run.claim for run in self._running}
            for claim in session.scheduler.claimed.values():
                if claim not in going:
                    self.context.pace.free(claim)
        for pool in (self._first, self._again):
            pool.forget(self)
        self._given_up.leave(self._running)
        for run in list(self._running):
            self._former[run.place] = None
            run.abort()

    async def run_out(self) -> None:
        """Wait until what runs now has ended; others go on to begin. None of it is tried again in place."""
        last = list(self._running)
        for run in last:
            run.end_tries()
        while last:
            if last[-1] not in self._running:
                last.pop()
                continue
            self._settled.clear()
            await self._settled.wait()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, wait for running handlers, then give up those that are not done and wait for them."""
        waiting = [pool.flush(self) for pool in (self._first, self._again)]
        if any(waiting):
            await asyncio.sleep(0)  # runners that are free begin what has waited for more records
        self._draining = True
        if self.session is not None:
            self.session.end_tasks()
        for run in list(self._running):
            run.end_tries()
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_idle()
        except TimeoutError:
            for run in list(self._running):
                run.abort()
            with suppress(TimeoutError):  # of a handler that swallows its cancellation: its outcome is ignored
                async with asyncio.timeout(min(deadline_s, ABORT_WAIT_S)):
                    await self._wait_idle()
        await asyncio.sleep(0)  # a suspect that has ended says so before its lane finishes
        if self.session is not None:  # its lane may have failed
            self.session.release(ahead=True)
            self.session.note_progress()

    async def _wait_idle(self) -> None:
        while self._running:
            self._settled.clear()
            await self._settled.wait()

    # -- taking records in --------------------------------------------------------------------------------------

    def room(self, tp: TopicPartition) -> int:
        """Return how many records of `tp` may come in now."""
        return 0 if tp != self._main or self.session is None or self._draining else self.session.room

    def idle(self, tp: TopicPartition) -> bool:
        """Tell whether the turns of all records of `tp` are in the lane, and more may come."""
        return tp == self._main and self.session is not None and not len(self.session.window) and not self._draining

    def reach(self, tp: TopicPartition, position: int) -> None:
        """Note that all records of `tp` before a position came in."""
        if tp == self._main and self.session is not None and not self._draining:
            self.session.reach(position)

    def room_bytes(self, tp: TopicPartition) -> int:
        """Return how many bytes of `tp` may come in now; the last record may exceed it."""
        if tp != self._main or self.session is None:
            return 0
        return self.context.handler.max_in_flight_bytes - self.session.window.bytes

    def accept(self, tp: TopicPartition, number: int, records: Sequence[Any]) -> None:
        """Take records of the main topic, in offset order, or due rows, from their agent."""
        if (session := self._session_of(number)) is None:
            return
        if tp == self.rows:
            session.accept_rows(records)
        else:
            session.accept(records)

    @override
    def waits(self, run: Run) -> bool:
        if not self._former or run.place not in self._former:
            held = self.context.alone.still and self._keeps_still(run)
            paced = (pace := self.context.pace).gated and not _is_decided(run)
            held = held or (paced and (self._sends_back(run) or pace.holds(run)))
            held = held or (self.context.letters is not None and self._wants_letter(self.context.letters, run))
            if held:
                self._free(run)
            return held
        self._former[run.place] = run
        return True

    def _keeps_still(self, run: Run) -> bool:
        """Tell whether a run waits for one that has the worker to itself; it is submitted again after that."""
        if run.on_end is not None:
            return False
        self.context.alone.wait(partial(self._submit, run))
        return True

    def _submit(self, run: Run) -> None:
        (self._first if run.claim is None else self._again).submit(run)

    def _wants_letter(self, letters: SharedLetters, run: Run) -> bool:
        """Tell whether the run of a dead letter waits; it is submitted again once it may begin."""
        return not letters.may_begin(run.record.offset, partial(self._submit, run))

    def _sends_back(self, run: Run) -> bool:
        goes = run.claim is not None and run.claim.runs and self.context.pace.sends_back(run)
        if goes:
            self.ended(run, None, None)
        return goes

    def _free(self, run: Run) -> None:
        if run.claim is not None:
            self.context.pace.free(run.claim)

    @override
    def begun(self, run: Run) -> None:
        self._running[run] = None
        self.context.alone.begun()
        if run.claim is not None and self.session is not None and run.session == self.session.number:
            self.session.scheduler.begun(run.claim)

    @override
    def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        self._free(run)
        began = self._over(run)
        if run.sequence is not None:
            self._given_up.note(run)
        session = self.session
        if session is not None and run.session == session.number:
            if run.claim is not None and not began:
                session.scheduler.begun(run.claim)
            session.take(run, outcome, fault)
            if (pace := self.context.pace).gated:
                pace.ended(run)
        elif began and (waiting := self._former.pop(run.place, None)) is not None:
            self._submit(waiting)
        if run.on_end is not None:
            if self.session is not None:
                self.session.release(ahead=self.session.sequences is not None)  # `on_end` may move offsets
            run.on_end(outcome is not None)

    @override
    def broke(self, run: Run, fault: Exception) -> None:
        self._free(run)
        self._over(run)
        self._former.pop(run.place, None)  # what waits for its end waits in a session that ends now
        self.lane.fail(fault)
        if run.on_end is not None:
            run.on_end(False)

    def _over(self, run: Run) -> bool:
        """Note that a run is over; tell whether it had begun."""
        began = self._running.pop(run, run) is None
        if began:
            self.context.alone.ended()
        self._settled.set()
        return began

    def settled(self, turns: Sequence[Turn]) -> None:
        """Take note of turns that are applied."""
        if self.session is not None:
            self.session.applied(turns)


def _is_decided(run: Run) -> bool:
    """Tell whether a command has cancelled or held a claim that has not begun: its handler is not called."""
    return run.claim is not None and (run.claim.cancelled or run.claim.on_hold is not None)

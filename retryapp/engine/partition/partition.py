"""One partition of one handler: deliver, park and fire over one lane, for the time of an assignment.

Each time its lane opens, a session begins: empty windows at the committed offsets, no claims, a firing task. Each time
the lane closes, the session ends: running handlers are given up, their outcomes ignored, and the next session reads
their records again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from typing_extensions import override

from retryapp.core.errors import LaneClosedError, MembershipLapsedError
from retryapp.core.marks import Tally
from retryapp.core.record import Record, held_bytes
from retryapp.core.rows import parse_row_key
from retryapp.engine.delivery.park import park
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run, RunOwner
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.duplicates import TURN_ROWS, Duplicates
from retryapp.engine.partition.firing import Firing
from retryapp.engine.partition.progress import Counting, OffsetWindow
from retryapp.engine.partition.suspects import Suspects
from retryapp.ports import Event, Observation, SeenTable, TopicPartition

ABORT_WAIT_S = 2.0
"""Longest wait of a drain for handlers that it has given up."""
PROGRESS_MS = 60_000
"""Longest time between two `progress` events of a partition that has traffic."""
_RECORD_OVERHEAD_BYTES = 200


class PartitionEngine(RunOwner):
    """Delivers, parks and fires the records of one partition."""

    def __init__(
        self,
        *,
        context: DeliveryContext,
        partition: int,
        first: DeliveryPool,
        again: DeliveryPool,
        wanted: Callable[[TopicPartition], None],
        progress_ms: int = PROGRESS_MS,
    ) -> None:
        self.context = context
        self.partition = partition
        self.lane: Lane
        self.firing: Firing
        topology = context.handler.topology
        self._main = TopicPartition(topology.main, partition)
        self._redelivery = TopicPartition(topology.redelivery, partition)
        self._retry = frozenset(TopicPartition(topic, partition) for topic in topology.retry_topics)
        self._first = first
        self._again = again
        self._wanted = wanted
        self._session = 0
        self._draining = False
        self._windows: dict[TopicPartition, OffsetWindow[Outcome]] = {}
        self._running: dict[Run, None] = {}
        """In the order in which they began."""
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._suspects: dict[TopicPartition, Suspects] = {}
        self._duplicates: Duplicates | None = None
        self._progress_ms = progress_ms
        self._counting = Counting(context.handler, self._main, Tally(from_offset=0, since_ms=0), 0)
        self._unreleased: dict[TopicPartition, None] = {}

    # -- session ------------------------------------------------------------------------------------------------

    @property
    def sources(self) -> tuple[TopicPartition, ...]:
        """Partitions whose records are taken in."""
        return (self._main, *sorted(self._retry), self._redelivery)

    @property
    def delivering(self) -> tuple[TopicPartition, TopicPartition]:
        """Sources whose records run in the handler."""
        return self._main, self._redelivery

    @property
    def in_flight(self) -> int:
        """Records taken in and not settled."""
        return sum(len(window) for window in self._windows.values())

    @property
    def release_lag_ms(self) -> int:
        """Age of the oldest record in flight, for which later offsets wait; 0 without any."""
        oldest = [window.oldest_ms for window in self._windows.values() if window.oldest_ms is not None]
        return max(0, self.context.clock.wall_ms() - min(oldest)) if oldest else 0

    @property
    def looked_ms(self) -> int | None:
        """When the session last scanned for due rows, epoch milliseconds; None without a session."""
        return self.firing.looked_ms if self._session > 0 else None

    @override
    def alive(self, run: Run) -> bool:
        alive = self._alive(run.session)
        if lapsed := alive and self.context.lapsed():  # stopped or cut off: another worker may own the partition
            self.lane.fail(MembershipLapsedError(self.lane.name))
        return alive and not lapsed

    def _alive(self, session: int) -> bool:
        return session == self._session and not self._draining

    def begin(self, session: int, starts: Mapping[TopicPartition, int], transport: LaneProtocol) -> None:
        """Begin a session; the lane has just opened."""
        self._session = session
        self._windows = {tp: OffsetWindow() for tp in starts}
        self._unreleased.clear()
        self.firing = Firing(self.context, self.lane, self.partition, session, transport.pending)
        self._duplicates = self._begin_duplicates(transport.seen)
        start = starts[self._main]
        tally = transport.tally or Tally(from_offset=start, since_ms=self.context.clock.wall_ms())
        self._counting = Counting(self.context.handler, self._main, tally, start)
        self._suspects = {
            tp: Suspects(self.context, self.lane, session, found=found, submit=self._pool(tp).submit)
            for tp, found in transport.suspicions.items()
        }
        works = [self.firing.run, *(each.run for each in self._suspects.values())]
        self._tasks = [asyncio.create_task(self._guard(session, work), name=f"work-{self.lane.name}") for work in works]

    def _begin_duplicates(self, seen: SeenTable | None) -> Duplicates | None:
        handler = self.context.handler
        if handler.deduplicate is None:
            return None
        if seen is None:
            raise RuntimeError(f"lane {self.lane.name} opened without its table of seen events")
        changelog = TopicPartition(handler.topology.seen_changelog, self.partition)
        return Duplicates(handler.deduplicate, self.context, seen, changelog)

    def end(self) -> None:
        """End the session; its outcomes are ignored."""
        self._session = -1
        self._windows = {}
        for run in list(self._running):
            run.abort()
        self._end_tasks()

    def _end_tasks(self) -> None:
        for task in self._tasks:
            self.firing.over = True
            task.cancel()
        self._tasks.clear()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, wait for running handlers, then give up those that are not done and wait for them."""
        self._draining = True
        self._end_tasks()
        for run in list(self._running):
            if not run.begun:
                run.abort()  # what has not begun does not begin now
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_idle()
        except TimeoutError:
            for run in list(self._running):
                run.abort()
            with suppress(TimeoutError):  # of a handler that swallows its cancellation: its outcome is ignored
                async with asyncio.timeout(min(deadline_s, ABORT_WAIT_S)):
                    await self._wait_idle()
        self._release_all()
        self._note_progress(self._session)

    async def _wait_idle(self) -> None:
        while self._running:
            self._settled.clear()
            await self._settled.wait()

    # -- taking records in --------------------------------------------------------------------------------------

    def room(self, tp: TopicPartition) -> int:
        """Return how many records of `tp` may come in now."""
        window = self._windows.get(tp)
        if window is None or self._draining:
            return 0
        handler = self.context.handler
        if window.bytes >= handler.max_in_flight_bytes:
            return 0
        return max(0, min(handler.max_in_flight - len(window), self.lane.room))

    def idle(self, tp: TopicPartition) -> bool:
        """Tell whether the turns of all records of `tp` are in the lane, and more may come."""
        window = self._windows.get(tp)
        return window is not None and not len(window) and not self._draining

    def room_bytes(self, tp: TopicPartition) -> int:
        """Return how many bytes of `tp` may come in now; the last record may exceed it."""
        window = self._windows.get(tp)
        return 0 if window is None else self.context.handler.max_in_flight_bytes - window.bytes

    def accept(self, tp: TopicPartition, session: int, records: Sequence[Record]) -> None:
        """Take records of a source partition, in offset order."""
        if not self._alive(session):
            return
        window = self._windows[tp]
        if tp in self._retry:
            self._park(tp, session, window, records)
            return
        context, suspects = self.context, self._suspects.get(tp)
        submit = self._pool(tp).submit if suspects is None else suspects.add
        now_ms = context.clock.wall_ms()
        duplicates = self._duplicates if tp == self._main else None
        for record in records:
            size = held_bytes(record.key, record.value, record.headers) + _RECORD_OVERHEAD_BYTES
            window.add(record.offset, size, now_ms=now_ms)
            skipped = None if duplicates is None else duplicates.skip(record, now_ms)
            if skipped is None:
                submit(Run(self, context, record, source=tp, session=session))
            else:
                window.finish(record.offset, skipped)
                if suspects is not None:
                    suspects.passed(record.offset)
        if duplicates is not None:
            self._release(tp, session, window)  # nothing else may come to end

    def _pool(self, tp: TopicPartition) -> DeliveryPool:
        return self._first if tp == self._main else self._again

    def _park(self, tp: TopicPartition, session: int, window: OffsetWindow[Outcome], records: Sequence[Record]) -> None:
        context = self.context
        now_ms = context.clock.wall_ms()
        for record in records:
            window.add(record.offset)
            turn = park(context, record, now_ms)
            if turn.puts:
                turn.on_settled = partial(self._parked, parse_row_key(turn.puts[0].key).due_at_ms)
            window.finish(record.offset, turn)
        self._release(tp, session, window)

    def _parked(self, due_at_ms: int, committed: bool, _offsets: tuple[int, ...]) -> None:
        if committed:
            self.firing.parked(due_at_ms)

    @override
    def begun(self, run: Run) -> None:
        self._running[run] = None

    @override
    def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        self._running.pop(run, None)
        if not self._running:
            self._settled.set()
        if run.session == self._session:
            self._take(run, outcome, fault)
        if run.on_end is not None:
            self._release_all()  # before `on_end`, which may move offsets
            run.on_end()

    def _take(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        if fault is not None:
            self.lane.fail(fault)
        elif outcome is not None:
            more = 0 if run.outbox is None else sum(each.size for each in run.outbox.published)
            self._windows[run.source].finish(run.record.offset, outcome, more)
            if not self._unreleased:
                asyncio.get_running_loop().call_soon(self._release_all)  # once for all that end in one go
            self._unreleased[run.source] = None

    def _release_all(self) -> None:
        while self._unreleased:
            tp, _ = self._unreleased.popitem()
            window = self._windows.get(tp)
            if window is not None:
                self._release(tp, self._session, window)

    def _release(self, tp: TopicPartition, session: int, window: OffsetWindow[Outcome]) -> None:
        outcomes = window.release()
        if not outcomes:
            return
        duplicates = self._duplicates
        turns = [*self._turns(tp, outcomes)] if duplicates is None else self._noted(duplicates, tp, outcomes)
        if tp == self._main:
            self._counting.settle(turns)
        try:
            for turn in turns:
                self.lane.submit(session, turn)
        except LaneClosedError:
            return  # the session is over; the records will be read again
        if tp == self._main:
            if self._counting.due(self.context.clock.wall_ms(), self._progress_ms):
                self._note_progress(session)
        elif tp == self._redelivery:
            self.firing.delivered(turns[-1].next_offset)
        if len(window) <= self.context.handler.max_in_flight // 2:  # in batches: each is an event of Faust's
            self._wanted(tp)

    def _noted(self, duplicates: Duplicates, tp: TopicPartition, outcomes: Sequence[Outcome]) -> list[Turn]:
        turns = [
            turn for at in range(0, len(outcomes), TURN_ROWS) for turn in self._turns(tp, outcomes[at : at + TURN_ROWS])
        ]
        if tp == self._main:
            now_ms = self.context.clock.wall_ms()
            for turn in turns:
                duplicates.note(turn, now_ms)
        return turns

    def _turns(self, tp: TopicPartition, outcomes: Sequence[Outcome]) -> Iterator[Turn]:
        """Make one turn of each run of records that succeeded at once."""
        fine = upto = 0
        for outcome in outcomes:
            if isinstance(outcome, int):
                fine, upto = fine + 1, outcome
                continue
            if fine:
                yield self._fine(tp, fine, upto)
                fine = 0
            yield outcome
        if fine:
            yield self._fine(tp, fine, upto)

    def _fine(self, tp: TopicPartition, count: int, next_offset: int) -> Turn:
        last, topic = next_offset - 1, tp.topic
        seen = Observation(
            event=Event.SUCCEEDED,
            handler=topic,
            topic=topic,
            partition=tp.partition,
            offset=last,
            attempt=1,
            count=count,
        )
        return Turn(source=tp, next_offset=next_offset, settles=count, fine=True, observations=(seen,))

    def _note_progress(self, session: int) -> None:
        try:
            if (turn := self._counting.say(self.context.clock.wall_ms())) is not None:
                self.lane.submit(session, turn)
        except LaneClosedError:
            return  # who opens the lane next knows what is counted of what is durable

    async def _guard(self, session: int, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LaneClosedError:
            return
        except Exception as exc:  # noqa: BLE001 - else nothing would fire or run again, silently
            if session == self._session:
                self.lane.fail(exc)

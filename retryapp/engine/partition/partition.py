"""One partition of one handler: first deliveries and due rows over one lane, for the time of an assignment.

Each time its lane opens, a session begins: an empty window at the committed offset, no claims, a scheduler. Each time
the lane closes, the session ends: running handlers are given up, their outcomes ignored, and the next session delivers
their records again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from typing_extensions import override

from retryapp.core.control import is_mark
from retryapp.core.lane_errors import LaneClosedError, MembershipLapsedError
from retryapp.core.marks import Tally
from retryapp.core.record import Record, held_bytes
from retryapp.core.redelivery import is_copy
from retryapp.core.rows import PendingRow, row_due_ms
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import Claim, DeliveryContext, Outcome, Run, RunOwner
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn, observed, settling
from retryapp.engine.partition.beyond import LOOK_S, TURN_ROWS, Beyond, Settled, in_order
from retryapp.engine.partition.circuits import tell
from retryapp.engine.partition.commands import Commands
from retryapp.engine.partition.duplicates import Duplicates, begin_duplicates
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.latest import Latest
from retryapp.engine.partition.progress import Counting, OffsetWindow
from retryapp.engine.partition.recall import Recall
from retryapp.engine.partition.redelivery import Redelivery, begin_redelivery
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.suspects import Suspects, begin_suspects
from retryapp.ports import Event, TopicPartition

ABORT_WAIT_S = 2.0
"""Longest wait of a drain for handlers that it has given up."""
PROGRESS_MS = 60_000
"""Longest time between two `progress` events of a partition that has traffic."""
_RECORD_OVERHEAD_BYTES = 200

Delivered = tuple[Claim, Record]
"""A due row on its way to the handler."""


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
        self.scheduler: Scheduler
        topology = context.handler.topology
        self._main = TopicPartition(topology.main, partition)
        self.rows = TopicPartition(topology.retry_topics[0], partition)
        """Under this name due rows go to their agent."""
        self._emit = emit or self._accept_rows
        self._first = first
        self._again = again
        self._wanted = wanted
        self._session = 0
        self._draining = False
        self._window: OffsetWindow[Outcome | Settled] = OffsetWindow()
        self._beyond = Beyond(self._main, 0, {})
        self._look_timer: asyncio.TimerHandle | None = None
        self._running: dict[Run, None] = {}
        """In the order in which they began."""
        self._former: dict[bytes, Run | None] = {}
        """Records whose runs of ended sessions go on, and the runs of this session that wait for these."""
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._suspects: Suspects | None = None
        self._suspect_rows: Suspects | None = None
        self._duplicates: Duplicates | None = None
        self._sequences: Sequences | None = None
        self._redelivery: Redelivery | None = None
        self.commands: Commands | None = None
        """Of the session; None without one."""
        self._given_up = given_up or GivenUp()
        self._progress_ms = progress_ms
        self._letters = topology.letters_of is not None
        self._counting = Counting(context.handler, self._main, Tally(from_offset=0, since_ms=0), 0)
        self._applied_to = 0
        """Before this offset of the main topic, what became of all records is in the tables."""
        self._outcomes: list[Turn] = []
        """Turns of due rows that are not in the lane yet."""
        self._unreleased = False

    # -- session ------------------------------------------------------------------------------------------------

    @property
    def sources(self) -> tuple[TopicPartition, ...]:
        """Partitions whose records are taken in."""
        return (self._main,)

    @property
    def in_flight(self) -> int:
        """Records taken in, and rows claimed, that are not settled."""
        return len(self._window) + (len(self.scheduler.claimed) if self._session > 0 else 0)

    @property
    def running(self) -> int:
        """Records in handlers now: no others of those in flight."""
        return len(self._running)

    @property
    def claimed(self) -> Collection[bytes]:
        """Keys of the due rows that are being delivered."""
        return self.scheduler.claimed.keys() if self._session > 0 else ()

    @property
    def release_lag_ms(self) -> int:
        """Age of the oldest record in flight, for which the committed offset waits; 0 without any."""
        oldest_ms = self._window.oldest_ms
        return 0 if oldest_ms is None else max(0, self.context.clock.wall_ms() - oldest_ms)

    @property
    def looked_ms(self) -> int | None:
        """When the session last scanned for due rows, epoch milliseconds; None without a session."""
        return self.scheduler.looked_ms if self._session > 0 else None

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
        self._session, self._window = session, OffsetWindow()
        self._outcomes, self._unreleased = [], False
        ordered = self.context.handler.order is not Order.NONE
        self._beyond = Beyond(self._main, starts[self._main], transport.settled, ordered=ordered)
        emit, loaded = partial(self._emit, self.rows, session), partial(self._wanted, self._main)
        commanded = None if transport.place.control is None else self._commanded
        start = starts[self._main]
        self._sequences = None
        if ordered:
            place = self.context, self.partition, self._given_up, start, transport.main_end
            sort = Latest if self.context.handler.order is Order.LATEST else Sequences
            calls: Any = {"settle": self._settle, "submit": partial(self.lane.submit, session)}
            self._sequences = sort(*place, start=lambda run: self._start(run), **calls)
        read: Any = transport.reader, self._main, transport.pending, self._sequences
        recall = Recall(self.context, *read, deliver=emit, submit=partial(self.lane.submit, session))
        calls = {"deliver": recall.take, "submit": partial(self.lane.submit, session)}
        self._redelivery = begin_redelivery(self.context, transport, start, **calls)
        take = recall.take if self._redelivery is None else self._redelivery.take
        facts = self.context, self.partition, transport.pending, take, self._sequences, loaded, commanded
        self.scheduler = recall.scheduler = Scheduler(*facts, self._held)
        if commanded is not None:
            self.commands = Commands(
                self.context,
                transport,
                self.scheduler,
                self._sequences,
                submit=partial(self.lane.submit, session),
                busy=lambda: self.lane.busy,
                taken_in=self._window.has,
                applied_to=lambda: self._applied_to,
                read=recall.read_row,
            )
        self._duplicates = begin_duplicates(self.context, transport.seen, self.partition)
        tally = transport.counted_from(start, self.context.clock.wall_ms())
        self._counting = Counting(self.context.handler, self._main, tally, start)
        self._applied_to = start
        suspects = partial(begin_suspects, self.context, self.lane, session, self.scheduler.claimed)
        self._suspects = suspects(transport.suspected, self._first.submit)
        self._suspect_rows = suspects(transport.suspected_rows, self._again.submit)
        self._start = self._first.submit if self._suspects is None else self._suspects.add
        parts = self.scheduler, recall, self.commands, self._suspects, self._suspect_rows
        works = [recall.keep, *(each.run for each in parts if each is not None)]
        telling = partial(tell, self.lane, session, self.context, self.partition)
        self.context.pace.begin(self._first.submit, self._again.submit, self._freed, telling, self.lane.fail)
        self._tasks = [asyncio.create_task(self._guard(session, work), name=f"work-{self.lane.name}") for work in works]

    def end(self) -> None:
        """End the session; its outcomes are ignored."""
        self._session = -1
        self.commands = None
        self.context.pace.end()
        self._window = OffsetWindow()
        self._outcomes = []
        self._given_up.ended = None
        self._given_up.leave(self._running)
        for run in list(self._running):
            self._former[run.place] = None
            run.abort()
        self._end_tasks()
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def _end_tasks(self) -> None:
        for task in self._tasks:
            self.scheduler.over = True
            task.cancel()
        self._tasks.clear()

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, wait for running handlers, then give up those that are not done and wait for them."""
        waiting = [pool.flush(self) for pool in (self._first, self._again)]
        if any(waiting):
            await asyncio.sleep(0)  # runners that are free begin what has waited for more records
        self._draining = True
        self._end_tasks()
        for run in list(self._running):
            if not run.begun:
                run.abort()  # what has not begun does not begin now
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
        self._release(ahead=True)
        self._note_progress(self._session)

    async def _wait_idle(self) -> None:
        while self._running:
            self._settled.clear()
            await self._settled.wait()

    # -- taking records in --------------------------------------------------------------------------------------

    def room(self, tp: TopicPartition) -> int:
        """Return how many records of `tp` may come in now."""
        if tp != self._main or self._session < 0 or self._draining or not self.scheduler.loaded:
            return 0
        handler, window = self.context.handler, self._window
        if window.bytes >= handler.max_in_flight_bytes or (self._sequences is not None and self._sequences.full):
            return 0
        return self.context.pace.room(max(0, min(handler.max_in_flight - len(window), self.lane.room)))

    def idle(self, tp: TopicPartition) -> bool:
        """Tell whether the turns of all records of `tp` are in the lane, and more may come."""
        return tp == self._main and self._session > 0 and not len(self._window) and not self._draining

    def reach(self, tp: TopicPartition, position: int) -> None:
        """Note that all records of `tp` before a position came in."""
        if self._redelivery is not None and tp == self._main and self._alive(self._session):
            self._redelivery.reach(position)

    def room_bytes(self, tp: TopicPartition) -> int:
        """Return how many bytes of `tp` may come in now; the last record may exceed it."""
        return self.context.handler.max_in_flight_bytes - self._window.bytes if tp == self._main else 0

    def accept(self, tp: TopicPartition, session: int, records: Sequence[Any]) -> None:
        """Take records of the main topic, in offset order, or due rows, from their agent."""
        if tp == self.rows:
            self._accept_rows(tp, session, records)
        elif self._alive(session):
            self._accept(session, records)

    def _accept_rows(self, _tp: TopicPartition, session: int, rows: Sequence[Delivered]) -> None:
        if not self._alive(session):
            return
        submit = self._again.submit if self._suspect_rows is None else self._suspect_rows.add
        for claim, record in rows:
            if self.scheduler.claimed.get(claim.key) is claim:  # else of an older assignment, whose sessions began at 1
                name = None if self._sequences is None or claim.damage else self._sequences.name(record.key)
                submit(Run(self, self.context, record, claim=claim, session=session, sequence=name))

    def _accept(self, session: int, records: Sequence[Record]) -> None:
        context, window = self.context, self._window
        submit = self._start if self._sequences is None else self._sequences.arrive
        now_ms = context.clock.wall_ms()
        duplicates = self._duplicates
        at_once = duplicates is not None
        for record in records:
            size = held_bytes(record.key, record.value, record.headers) + _RECORD_OVERHEAD_BYTES
            found = self._beyond.found(record)
            has_row = self._sequences is not None and self._sequences.reach(record)
            if has_row and not (found and found[-1].next_offset > record.offset):
                found.append(Settled(record.next_offset, fine=False))  # the offset was set back: its row runs
            for settled in found:
                window.add(settled.next_offset - 1, now_ms=now_ms)
                window.went_ahead(settled.next_offset - 1, settled)
                at_once = True
            if window.last == record.offset:
                continue
            window.add(record.offset, size, now_ms=now_ms)
            if self._letters and is_mark(record.headers):
                window.finish(record.offset, record.next_offset)  # no letter: it says what became of one
                at_once = True
                continue
            if record.headers and is_copy(record.topic, record.partition, record.headers):
                seen = observed(Event.COPY, context.handler.main, record)
                passed = settling(record, settles=0, skipped=True, observations=(seen,))  # no record: it is not counted
                window.finish(record.offset, passed)
                at_once = True
                continue
            skipped = None if duplicates is None else duplicates.skip(record, now_ms)
            if skipped is None:
                submit(Run(self, context, record, session=session))
            else:
                window.finish(record.offset, skipped)
        if at_once:
            self._release()  # nothing else may come to end
        if records:
            self.reach(self._main, records[-1].next_offset)

    @override
    def waits(self, run: Run) -> bool:
        if not self._former or run.place not in self._former:
            return (pace := self.context.pace).gated and (self._sends_back(run) or pace.holds(run))
        self._former[run.place] = run
        return True

    def _sends_back(self, run: Run) -> bool:
        goes = run.claim is not None and run.claim.runs and self.context.pace.sends_back(run)
        if goes:
            self.ended(run, None, None)
        return goes

    @override
    def begun(self, run: Run) -> None:
        self._running[run] = None
        if run.claim is not None and run.session == self._session:
            self.scheduler.begun(run.claim)

    @override
    def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        began = self._running.pop(run, run) is None
        if not self._running:
            self._settled.set()
        if run.sequence is not None:
            self._given_up.note(run)
        if run.session == self._session:
            if run.claim is not None and not began:
                self.scheduler.begun(run.claim)
            self._take(run, outcome, fault)
            if (pace := self.context.pace).gated:
                pace.ended(run)
        elif began and (waiting := self._former.pop(run.place, None)) is not None:
            (self._first if waiting.claim is None else self._again).submit(waiting)
        if run.on_end is not None:
            self._release(ahead=self._sequences is not None)  # before `on_end`, which may move offsets
            run.on_end(outcome is not None)

    async def _commanded(self) -> None:
        if self.commands is not None:
            await self.commands.queue.caught_up.wait()

    def _held(self, key: bytes, row: PendingRow) -> bool:
        return self.commands is not None and self.commands.take_held(key, row)

    def _freed(self) -> None:
        self.scheduler.freed()
        self._wanted(self._main)

    def _take(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        if outcome is not None:
            try:
                outcome = outcome if self.commands is None else self.commands.judged(run, outcome)
                outcome = outcome if self._sequences is None else self._sequences.judged(run, outcome)
            except Exception as exc:  # noqa: BLE001 - as one in the delivery: else its record would never end
                fault = exc
        if fault is not None:
            self.lane.fail(fault)
            return
        if outcome is None:
            if run.claim is not None:
                self.scheduler.give_back(run.claim)
                if self._suspect_rows is not None:
                    self._suspect_rows.settled()
        elif run.claim is None:
            more = 0 if run.outbox is None else sum(each.size for each in run.outbox.published)
            self._window.finish(run.record.offset, outcome, more)
        elif isinstance(outcome, Turn):
            self._outcomes.append(outcome)
            if self.commands is not None:
                self.commands.over.add(run.claim.key)
        if self._sequences is not None and self._sequences.ended(run, outcome):
            self._release(ahead=True)
        if outcome is not None and not self._unreleased:
            self._release_soon()

    def _settle(self, run: Run, turn: Turn) -> None:
        """Take the turn of a first delivery that does not run now."""
        self._window.finish(run.record.offset, turn)
        if not self._unreleased:
            self._release_soon()

    def _release_soon(self) -> None:
        self._unreleased = True
        asyncio.get_running_loop().call_soon(self._release)  # once for all that end in one go

    def _release(self, *, ahead: bool = False) -> None:
        """Hand to the lane what may go: the outcomes of rows, and of the first records up to one that runs.

        With `ahead`, those of records after that one, too.
        """
        self._unreleased = False
        session = self._session
        if session < 0:
            return
        try:
            turns, self._outcomes = self._outcomes, []
            outcomes = self._window.release()
            if outcomes:
                first = self._turns(outcomes)
                self._counting.settle(first)
                turns += first
            if ahead:
                turns += self._turns_ahead()
            for turn in turns:
                self.lane.submit(session, turn)
        except LaneClosedError:
            return  # the session is over; the records will be delivered again
        except Exception as exc:  # noqa: BLE001 - what is released and not in the lane would be passed over
            self.lane.fail(exc)
            return
        if self._window.waiting and self._look_timer is None:
            self._look_timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        if outcomes:
            if self._counting.due(self.context.clock.wall_ms(), self._progress_ms):
                self._note_progress(session)
            if len(self._window) <= self.context.handler.max_in_flight // 2:  # in batches: each is an event of Faust's
                self._wanted(self._main)

    def settled(self, turns: Sequence[Turn]) -> None:
        """Take note of turns that are applied: claims end, new rows wait, and there is room."""
        scheduler = self.scheduler
        self._beyond.passed(turns)
        for turn in turns:
            for row in turn.rows:
                if row.value is not None:
                    scheduler.changed(row_due_ms(row.value))
            if turn.claim is not None:
                scheduler.release(turn.claim)
                if self.commands is not None:
                    self.commands.over.discard(turn.claim)
            self._applied_to = max(self._applied_to, turn.moves_to)
        if self.commands is not None:
            self.commands.applied(turns)
        if self._sequences is not None:
            self._sequences.applied(turns)
        if self._suspect_rows is not None:
            self._suspect_rows.settled()
        self._wanted(self._main)

    def _look(self) -> None:
        """Look for outcomes that have waited too long for a record that runs."""
        self._look_timer = None
        self._release(ahead=self._window.is_late())

    def _turns(self, outcomes: Sequence[Outcome | Settled]) -> list[Turn]:
        if self._duplicates is None:
            return [*in_order(self._main, outcomes)]
        parts = (outcomes[at : at + TURN_ROWS] for at in range(0, len(outcomes), TURN_ROWS))
        return self._noted([turn for part in parts for turn in in_order(self._main, part)])

    def _turns_ahead(self) -> list[Turn]:
        return self._noted(self._beyond.turns(self._window, None if self._duplicates is None else TURN_ROWS))

    def _noted(self, turns: list[Turn]) -> list[Turn]:
        return turns if self._duplicates is None else self._duplicates.noted(turns, self.context.clock.wall_ms())

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
        except Exception as exc:  # noqa: BLE001 - else no row would be delivered again, silently
            if session == self._session:
                self.lane.fail(exc)

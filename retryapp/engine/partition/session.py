"""One session of a partition: its records and rows in flight, and the way of their outcomes to the lane.

It begins each time the lane opens: an empty window at the committed offset, no claims, a scheduler. It ends when the
lane closes: outcomes that come later are ignored, and the next session delivers their records again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from retryapp.core.control import is_mark
from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.record import Record, held_bytes
from retryapp.core.redelivery import is_copy
from retryapp.core.rows import PendingRow, row_due_ms
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import Claim, DeliveryContext, Outcome, Run, RunOwner
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.recovery import find_lost
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn, settling
from retryapp.engine.partition.beyond import LOOK_S, TURN_ROWS, Beyond, Settled, in_order, may_run_again
from retryapp.engine.partition.circuits import tell
from retryapp.engine.partition.commands import Commands
from retryapp.engine.partition.duplicates import begin_duplicates
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.latest import Latest
from retryapp.engine.partition.lost_rows import LostRows
from retryapp.engine.partition.progress import Counting, OffsetWindow
from retryapp.engine.partition.recall import Recall
from retryapp.engine.partition.redelivery import begin_redelivery, passed
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from retryapp.engine.partition.suspects import Suspects, begin_suspects
from retryapp.ports import TopicPartition

PROGRESS_MS = 60_000
"""Longest time between two `progress` events of a partition that has traffic."""
_RECORD_OVERHEAD_BYTES = 200

Delivered = tuple[Claim, Record]
"""A due row on its way to the handler."""


class Session:
    """What is in flight, between an opening of the lane and its end."""

    def __init__(
        self,
        number: int,
        owner: RunOwner,
        context: DeliveryContext,
        lane: Lane,
        start: int,
        transport: LaneProtocol,
        *,
        main: TopicPartition,
        first: DeliveryPool,
        again: DeliveryPool,
        emit: Callable[[list[Delivered]], None],
        wanted: Callable[[], None],
        given_up: GivenUp,
        progress_ms: int = PROGRESS_MS,
    ) -> None:
        """Begin it; `work` comes next.

        Args:
            number: of the lane's session.
            owner: of its runs.
            context: of the handler and partition.
            lane: takes the turns.
            start: the committed offset.
            transport: of the lane, which has just opened.
            main: the partition of the main topic.
            first: runs first deliveries.
            again: runs due rows.
            emit: sends due rows to their agent.
            wanted: called when there is room for records.
            given_up: runs that go on, also of earlier sessions.
            progress_ms: longest time between two `progress` events.
        """
        self.number = number
        self.over = False
        self.window: OffsetWindow[Outcome | Settled] = OffsetWindow()
        self._owner = owner
        self._context = context
        self._lane = lane
        self._main = main
        self._again = again
        self._first = first
        self._wanted = wanted
        self._given_up = given_up
        self._transport = transport
        self._progress_ms = progress_ms
        self._is_of_letters = context.handler.topology.reads_letters
        self._submit = partial(lane.submit, number)
        self._fence = (transport.fence_at if transport.place.fences else None) or 0
        self._outcomes: list[Turn] = []
        """Turns of due rows that are not in the lane yet."""
        self._unreleased = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._applied_to = start
        """Before this offset of the main topic, what became of all records is in the tables."""
        self._read_to = start
        """All records of the main topic before this offset came in."""
        ordered = context.handler.order is not Order.NONE
        self._beyond = Beyond(main, start, transport.settled, ordered=ordered)
        self._lost_rows = LostRows(context, transport.pending, start=lambda run: self._start(run))
        self.sequences: Sequences | None = None
        if ordered:
            place = context, main.partition, given_up, start, transport.main_end
            sort: Any = Sequences
            if context.handler.order is Order.LATEST:
                sort = partial(Latest, find_lost=partial(find_lost, transport.reader, main))
            calls: Any = {"settle": self._settle, "submit": self._submit, "kept": self._lost_rows.holds}
            self.sequences = self._lost_rows.sequences = sort(*place, start=self._lost_rows.begin, **calls)
        self._pending = transport.pending
        commanded = None if transport.place.control is None else self._commanded
        read: Any = transport.reader, main, transport.pending, self.sequences
        self._recall = Recall(context, *read, deliver=emit, submit=self._submit)
        calls = {"deliver": self._recall.take, "submit": self._submit, "over": lambda: self.over}
        self._redelivery = begin_redelivery(context, transport, start, **calls, waited_for=self._lost_rows.waits_for)
        take = self._recall.take if self._redelivery is None else self._redelivery.take
        facts = context, main.partition, transport.pending, take, self.sequences, wanted, commanded
        self.scheduler = self._recall.scheduler = Scheduler(*facts, self._held)
        self.commands: Commands | None = None
        if commanded is not None:
            self.commands = Commands(
                context,
                transport,
                self.scheduler,
                self.sequences,
                submit=self._submit,
                busy=lambda: lane.busy,
                runs_again=self._runs_again,
                applied_to=lambda: self._applied_to,
                read_to=lambda: max(self._read_to, transport.main_end),
                recall=self._recall,
            )
        self._duplicates = begin_duplicates(context, transport.seen, main.partition)
        tally = transport.counted_from(start, context.clock.wall_ms())
        self._counting = Counting(context.handler, main, tally, start)
        ahead = partial(self.release, ahead=True)
        suspects = partial(begin_suspects, context, lane, number, self.scheduler.claimed, ahead)
        self._suspects = suspects(transport.suspected, first.submit)
        self._suspect_rows = suspects(transport.suspected_rows, again.submit)
        self._start = first.submit if self._suspects is None else self._suspects.add
        self._start_again = again.submit if self._suspect_rows is None else self._suspect_rows.add

    def work(self) -> None:
        """Have its tasks run until it ends."""
        if self._context.letters is not None:
            self._context.letters.begin()
        parts = self.scheduler, self._recall, self._redelivery, self.commands
        works = [self._recall.keep, *(each.run for each in parts if each is not None)]
        kept = None if self.commands is None else self.commands.circuits
        telling = partial(tell, self._submit, self._context, self._main.partition, kept)
        calls = self._freed, telling, self._lane.fail, self.scheduler.has_rows
        self._context.pace.begin(self._first.submit, self._again.submit, *calls)
        if kept is not None and kept.lacking:
            self._submit(kept.turn())
        self._tasks = [*map(self._begin, works)]
        for suspects in self._all_suspects:
            suspects.begin(self._begin(suspects.run))

    @property
    def _all_suspects(self) -> list[Suspects]:
        return [each for each in (self._suspects, self._suspect_rows) if each is not None]

    def _begin(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guard(work), name=f"work-{self._lane.name}")

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except LaneClosedError:
            return
        except Exception as exc:  # noqa: BLE001 - else no row would be delivered again, silently
            if not self.over:
                self._lane.fail(exc)
                self.scheduler.end()

    def end_tasks(self) -> None:
        """Claim no more rows, obey no more commands, and begin no more suspects."""
        self.scheduler.end()
        for suspects in self._all_suspects:
            suspects.stop()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def end(self) -> None:
        """End it; what its runs come to is ignored."""
        self.over = True
        self._context.pace.end()
        if self._context.letters is not None:
            self._context.letters.end()
        self._given_up.ended = None
        self.end_tasks()
        if self._look_timer is not None:
            self._look_timer.cancel()

    # -- taking records in --------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Records taken in, and rows claimed, that are not settled."""
        return len(self.window) + len(self.scheduler.claimed)

    @property
    def blocked(self) -> str | None:
        """What keeps records on the main topic, for people; None: nothing."""
        return self._lost_rows.blocked or (None if self.sequences is None else self.sequences.blocked)

    @property
    def room(self) -> int:
        """How many records may come in now."""
        handler, window = self._context.handler, self.window
        is_full = window.bytes >= handler.max_in_flight_bytes or (self.sequences is not None and self.sequences.full)
        if is_full or not self.scheduler.loaded:
            return 0
        return self._context.pace.room(max(0, min(handler.max_in_flight - len(window), self._lane.room)))

    def accept_rows(self, rows: Sequence[Delivered]) -> None:
        """Take due rows from their agent."""
        for claim, record in rows:
            if self.scheduler.claimed.get(claim.key) is claim:  # else of an older assignment, whose sessions began at 1
                unknown = self.sequences is None or (claim.damage is not None and self.sequences.by_key)
                name = None if self.sequences is None or unknown else self.sequences.name(record.key)
                claim.arrived = True
                facts: Any = {"claim": claim, "session": self.number, "fence": self._fence, "sequence": name}
                self._start_again(Run(self._owner, self._context, record, **facts))

    def accept(self, records: Sequence[Record]) -> None:
        """Take records of the main topic, in offset order."""
        context, window = self._context, self.window
        submit = self._lost_rows.begin if self.sequences is None else self.sequences.arrive
        now_ms = context.clock.wall_ms()
        duplicates = self._duplicates
        newest = -1 if self._pending is None else self._pending.newest
        at_once, ahead = duplicates is not None, False
        for record in records:
            size = held_bytes(record.key, record.value, record.headers) + _RECORD_OVERHEAD_BYTES
            found = self._beyond.found(record)
            has_row = self.sequences is not None and self.sequences.has_row(record)
            waits, is_kept = self._lost_rows.row_of(record) if record.offset <= newest else (False, False)
            if is_kept and found and found[-1].next_offset == record.next_offset:
                self._take_back(found.pop())
            for settled in found:
                window.add(settled.next_offset - 1, now_ms=now_ms)
                window.went_ahead(settled.next_offset - 1, settled)
                at_once = True
            if window.last == record.offset:
                continue
            window.add(record.offset, size, now_ms=now_ms)
            if has_row or waits:
                # the offset was set back: its row runs, and when that has ended, only the note says so
                window.finish(record.offset, settling(record))
                ahead = at_once = True
                continue
            if self._is_of_letters and is_mark(record.headers):
                window.finish(record.offset, settling(record, settles=0, skipped=True))  # what became of a letter
                at_once = True
                continue
            if record.headers and is_copy(record.topic, record.partition, record.headers):
                window.finish(record.offset, passed(record))
                at_once = True
                continue
            skipped = None if duplicates is None else duplicates.skip(record, now_ms)
            if skipped is None:
                run = Run(self._owner, context, record, session=self.number, fence=self._fence)
                if is_kept:
                    self._wait_for_row(run)
                submit(run)
                if is_kept and self._lost_rows.holds(run):
                    self._lost_rows.say(run)
            else:
                window.finish(record.offset, skipped)
        if at_once:
            self.release(ahead=ahead)  # nothing else may come to end
        if records:
            self.reach(records[-1].next_offset)

    def _take_back(self, settled: Settled) -> None:
        """Remove a new record from the note of what is settled, before the row of the lost one goes."""
        offset = settled.next_offset - 1
        self._beyond.take_back(offset)
        self._transport.take_back([offset])
        with suppress(LaneClosedError):  # the session is over: it is read again
            self._submit(Turn(source=self._main, next_offset=0))

    def _wait_for_row(self, run: Run) -> None:
        """Have a first delivery wait for the row of another record that is in its place."""
        self._lost_rows.add(run)
        if self._suspects is not None:
            self._suspects.pass_over()
        if self._redelivery is not None:
            self._redelivery.hurry()

    def reach(self, position: int) -> None:
        """Note that all records of the main topic before a position came in."""
        self._read_to = max(self._read_to, position)
        if self.sequences is not None and self.scheduler.loaded:
            self._let_rows_go(self.sequences)
        if self._redelivery is not None:
            self._redelivery.reach(position)

    def _runs_again(self, offset: int) -> bool:
        """Tell whether a first delivery of a record may come, or what became of it is not in the tables yet."""
        return offset >= self._applied_to and not self._beyond.has(offset)

    def _let_rows_go(self, sequences: Sequences) -> None:
        """Have rows run whose records are read, but not behind an outcome that waits: theirs would overtake it."""
        sequences.read_to(self._read_to)
        waits_from = self.window.waits_from(may_run_again) if sequences.has_early else None
        position = self._read_to if waits_from is None else min(waits_from, self._read_to)
        sequences.handed_over(position)
        sequences.pass_to(position)

    async def _commanded(self) -> None:
        if self.commands is not None:
            await self.commands.queue.caught_up.wait()

    def _held(self, key: bytes, row: PendingRow) -> bool:
        return self.commands is not None and self.commands.take_held(key, row)

    def _freed(self) -> None:
        self.scheduler.freed()
        self._wanted()

    # -- outcomes -----------------------------------------------------------------------------------------------

    def take(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        """Take what a run has come to; None: nothing, with the fault if it is one of ours."""
        if outcome is not None:
            try:
                outcome = outcome if self.commands is None else self.commands.judged(run, outcome)
                outcome = outcome if self.sequences is None else self.sequences.judged(run, outcome)
            except Exception as exc:  # noqa: BLE001 - as one in the delivery: else its record would never end
                fault = exc
        if fault is not None:
            self._lane.fail(fault)
            return
        if (letters := self._context.letters) is not None:
            letters.ended(run.record.offset, outcome.publishes if isinstance(outcome, Turn) else ())
        if outcome is None:
            if run.claim is not None:
                self.scheduler.give_back(run.claim)
                if self._suspect_rows is not None:
                    self._suspect_rows.settled()
        elif run.claim is None:
            more = 0 if run.outbox is None else sum(each.size for each in run.outbox.published)
            self.window.finish(run.record.offset, outcome, more)
        elif isinstance(outcome, Turn):
            self._outcomes.append(outcome)
            run.claim.changing = True
        if self.sequences is not None and self.sequences.ended(run, outcome):
            self.release(ahead=True)
        if outcome is not None and not self._unreleased:
            self._release_soon()

    def _settle(self, run: Run, turn: Turn) -> None:
        """Take the turn of a first delivery that does not run now."""
        turn.provisional = self._lost_rows.leave(run)  # a note of it would be taken for one of that row's record
        self.window.finish(run.record.offset, turn)
        if not self._unreleased:
            self._release_soon()

    def _release_soon(self) -> None:
        self._unreleased = True
        asyncio.get_running_loop().call_soon(self.release)  # once for all that end in one go

    def release(self, *, ahead: bool = False) -> None:
        """Hand to the lane what may go: the outcomes of rows, and of the first records up to one that runs.

        With `ahead`, those of records after that one, too.
        """
        self._unreleased = False
        if self.over:
            return
        try:
            turns, self._outcomes = self._outcomes, []
            outcomes = self.window.release()
            if outcomes:
                first = self._turns(outcomes)
                self._counting.settle(first)
                turns += first
            if ahead:
                turns += self._turns_ahead()
            for turn in turns:
                self._submit(turn)
                if turn.rows and turn.claim is None:
                    self._recall.unwritten.update((row.identity, turn) for row in turn.rows)
            if self.sequences is not None and self.scheduler.loaded:
                self._let_rows_go(self.sequences)
            if self.window.waiting and self._look_timer is None:
                self._look_timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
            if outcomes:
                if self._counting.due(self._context.clock.wall_ms(), self._progress_ms):
                    self.note_progress()
                # in batches: each is an event of Faust's
                if len(self.window) <= self._context.handler.max_in_flight // 2:
                    self._wanted()
        except LaneClosedError:
            return  # the session is over; the records will be delivered again
        except Exception as exc:  # noqa: BLE001 - what is released and not in the lane would be passed over
            self._lane.fail(exc)

    def _look(self) -> None:
        """Look for outcomes that have waited too long for a record that runs."""
        self._look_timer = None
        self.release(ahead=self.window.is_late())

    def _turns(self, outcomes: Sequence[Outcome | Settled]) -> list[Turn]:
        if self._duplicates is None:
            return [*in_order(self._main, outcomes)]
        parts = (outcomes[at : at + TURN_ROWS] for at in range(0, len(outcomes), TURN_ROWS))
        return self._noted([turn for part in parts for turn in in_order(self._main, part)])

    def _turns_ahead(self) -> list[Turn]:
        return self._noted(self._beyond.turns(self.window, None if self._duplicates is None else TURN_ROWS))

    def _noted(self, turns: list[Turn]) -> list[Turn]:
        return turns if self._duplicates is None else self._duplicates.noted(turns, self._context.clock.wall_ms())

    def note_progress(self) -> None:
        """Publish what is counted so far, if there is any."""
        try:
            if (turn := self._counting.say(self._context.clock.wall_ms())) is not None:
                self._submit(turn)
        except LaneClosedError:
            return  # who opens the lane next knows what is counted of what is durable

    def applied(self, turns: Sequence[Turn]) -> None:
        """Take note of turns that are applied: claims end, new rows wait, and there is room."""
        scheduler = self.scheduler
        self._beyond.passed(turns)
        letters = self._context.letters
        for turn in turns:
            if letters is not None:
                letters.committed(turn.publishes)
            for row in turn.rows:
                if self._recall.unwritten.get(row.identity) is turn:
                    del self._recall.unwritten[row.identity]
                if row.value is not None:
                    scheduler.changed(row_due_ms(row.value))
            if turn.claim is not None:
                scheduler.release(turn.claim)
            self._applied_to = max(self._applied_to, turn.moves_to)
        if self.commands is not None:
            self.commands.applied(turns)
        if self.sequences is not None:
            self.sequences.applied(turns)
        self._lost_rows.applied(turns)
        if self._suspect_rows is not None:
            self._suspect_rows.settled()
        self._wanted()

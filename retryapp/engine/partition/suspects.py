"""Records that may have killed their worker run in groups, each named by a durable mark before any of it starts.

Else a record that kills its process would do so again and again, uncounted. The mark is committed by the lane of its
records (`core.marks`):

1. The suspects are taken in, and half of them make a group. Records after them wait.
2. The group's mark is durable; its records run, with the handler's concurrency.
3. All of them have durable outcomes, also what a topic had refused; the mark of the next group replaces theirs.
4. After the last group what has waited runs as always, and no mark counts against those that have run.

A worker that dies leaves the group that its mark names, and the next one runs half of that first. A group of one runs
alone in its worker (`engine.delivery.alone`), and its mark counts: after `max_crashes` the record is dead. The last of
these lives decides, so nothing at all runs beside it there: what is no suspect yet could kill the worker in its place.

As many first deliveries are suspect as may be in flight. Outcomes on their way to a commit are not: any number of them
may have been before the record that killed. So the unclean ends go on to count against what comes after the suspects,
and if the worker dies of that, twice as many are suspect in the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.marks import SUSPECT_AFTER, Kind, Mark, Place, Suspected, after, place_of, rows_text
from retryapp.core.row_keys import parse_row_key, queue_in
from retryapp.core.text import counted
from retryapp.engine.delivery.alone import STILL_S
from retryapp.engine.delivery.deliver import crashed
from retryapp.engine.delivery.run import Claim, DeliveryContext, Run
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Event, Observation, TopicPartition

GATHER_S: Final = 0.5
"""Longest wait for more suspects before a group is made. Nothing says that no more will come: offsets have gaps."""
DOUBLINGS: Final = 6
"""Most of them: more outcomes are hardly on their way to a commit."""
MOST_NAMED: Final = 5
"""Records of a group that are named where it is said to be suspect."""


class Suspects:
    """The first deliveries, or the due rows, that may have been running when a worker died."""

    def __init__(
        self,
        context: DeliveryContext,
        lane: Lane,
        session: int,
        *,
        found: Suspected,
        submit: Callable[[Run], None],
        release: Callable[[], None],
        claimed: Mapping[bytes, Claim],
    ) -> None:
        self._context = context
        self._lane = lane
        self._session = session
        self._found = found
        self._crashes = found.crashes
        rows = len(found.first) > 1  # they count as in flight until their outcomes are durable
        most = context.handler.max_in_flight << (0 if rows else min(found.more, DOUBLINGS))
        self._left = found.size or most  # of a group, those after them cannot have run before
        self._queued: Counter[int] = Counter()
        """Suspect rows by the queue of their circuit."""
        self._size = 1
        """Of a group."""
        self._clear = Mark(Kind.LIFE, 0, context.life)
        """Counts against none of those that have run."""
        if not (rows or found.size):
            self._clear = Mark(Kind.LIFE, SUSPECT_AFTER + found.more, context.life, found.first, upto=found.end)
        self._submit = submit
        self._release = release
        """Has the outcomes of first deliveries go to the lane, also those that wait for a record before them."""
        self._claimed = claimed
        """Due rows whose outcomes are not durable."""
        self._queue: deque[Run] = deque()
        self._held: list[Run] = []
        self._passed = False
        """A record after the suspects has come: all of them are there."""
        self._cleared = False
        """No mark counts against a record that has come."""
        self._before = False
        """A record before the suspects has come, or waits for its place: it may run while later ones are marked."""
        self._group: set[Run] = set()
        """Those that run and have not ended."""
        self._unsettled = 0
        """Of the group, those that have ended without an outcome."""
        self._holds = False
        """The lock of its worker, for a group that runs or whose mark is being taken back: this is not cut off."""
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def begin(self, task: asyncio.Task[None]) -> None:
        """Take note of the task in which this runs."""
        self._task = task

    def stop(self) -> None:
        """Begin no more. What has begun keeps the lock until it has ended, or was given up."""
        self._stopped = True
        for run in [*self._group]:
            if run.task is None:  # nor will it begin
                self._end(run, False)
        if self._task is not None and not self._holds:
            self._task.cancel()

    def add(self, run: Run) -> None:
        """Take a record, in the order of delivery. Others wait until the outcomes of the suspects are durable.

        Run at the same time, one of them could kill the worker in their place, life after life.
        """
        place = _place(run)
        ordered = self._context.handler.order is not Order.NONE
        self._before = self._before or (run.claim is None and place < self._found.first)
        if ordered and self._cleared and run.claim is None:  # what it has waited for is durable: it runs for itself
            self._submit(run)
        elif self._found.first <= place < self._found.end and (self._left > 0 or self._may_be_more(run)):
            self._left = max(0, self._left - 1)
            if run.claim is not None:
                self._queued[queue_in(run.claim.key)] += 1
            self._cleared = False
            self._queue.append(run)
        elif self._cleared:
            self._submit(run)
        else:
            self._held.append(run)
            self._passed = self._passed or place >= self._found.first
        self._wake.set()

    def pass_over(self) -> None:
        """Note that a record comes later than those behind it."""
        self._before = True

    def _may_be_more(self, run: Run) -> bool:
        """Tell whether there may be more suspects than ran: other rows may go first now.

        Rows between those of a group may have come since. Circuits let their queues go at other times in each life, so
        each queue has places of its own; and where an order is kept, a row that ends lets the next of its sequence go.
        """
        if run.claim is None:
            return False
        handler = self._context.handler
        most = handler.max_in_flight * (1 if handler.order is Order.NONE else 2)
        return self._found.size > 0 or self._queued[queue_in(run.claim.key)] < most

    def settled(self) -> None:
        """Note that claims of rows have ended: their turns are applied, or they were given back."""
        self._wake.set()

    async def run(self) -> None:
        """Run them, group by group, until `LaneClosedError`."""
        while True:
            await self._gather()
            last: Run | None = None
            while self._queue:
                self._queue = deque(sorted(self._queue, key=_place))  # heads of sequences come in any order
                self._size = max(self._size, (len(self._queue) + 1) // 2)
                alone_again = self._crashes > 0 and _place(self._queue[0]) == self._found.first
                group = [self._queue.popleft() for _ in range(1 if alone_again else min(self._size, len(self._queue)))]
                while group[0].claim is not None and self._arrived > len(group) + self._waiting:
                    await self._woken()  # they came late, and rows that are no suspects run already
                await self._run_group(group, self._crashes if alone_again else 0)
                last = group[-1]
            await self._note(self._clear, last or self._held[0], past=last is not None)
            if not self._queue:
                self._cleared = True
                held, self._held = self._held, []
                for run in held:
                    self._submit(run)

    @property
    def _waiting(self) -> int:
        return len(self._queue) + len(self._held)

    @property
    def _arrived(self) -> int:
        """Count the claims that run or may: one whose copy is not read yet may wait for these."""
        return sum(claim.arrived for claim in self._claimed.values())

    async def _gather(self) -> None:
        """Wait for the first record, and for as many suspects as there may be at once."""
        while not self._queue and not self._held:
            await self._woken()
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while self._left > 0 and not self._passed and self._waiting < self._context.handler.max_in_flight:
                    await self._woken()

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _run_group(self, group: list[Run], crashes: int) -> None:
        """Run a group to durable outcomes; those of first deliveries are durable with the next mark, at their end."""
        letters = self._context.letters
        if crashes >= self._context.handler.max_crashes:
            if letters is not None:
                await letters.known(group[0].record.offset)  # a command may change it, and then it is passed
            self._bury(group[0], crashes)
        else:
            while not await self._run_in_turn(group, crashes):
                pass  # it waits for what has come meanwhile
        while any(run.claim is not None and self._claimed.get(run.claim.key) is run.claim for run in group):
            await self._woken()

    async def _run_in_turn(self, group: list[Run], crashes: int) -> bool:
        """Run a group once it may; tell whether it has: its handler may be paused while it waits for others."""
        alone = len(group) == 1
        is_last = alone and crashes + 1 >= self._context.handler.max_crashes
        still_s = self._context.handler.timeout_s + STILL_S if is_last else 0.0
        going, letters = self._context.pace.going, self._context.letters
        for run in () if going.is_set() else (*group, *self._queue, *self._held):
            if run.claim is not None:  # rows of other partitions may have its place: its run asks for one
                self._context.pace.free(run.claim)
        await going.wait()
        if letters is not None:
            await letters.known()
        async with self._context.alone.held(alone=alone, still_s=still_s):
            if not going.is_set() or (letters is not None and letters.waits()):
                return False  # a mark counts against those that it is about
            await self._note(self._mark(group, crashes), group[0], observations=(self._suspicion(group, crashes),))
            self._holds = True
            settled = await self._run_together(group)
            if alone and settled:
                # before another starts, or this mark would blame this record for a crash of that one; its outcome
                # may be refused for long, and does not hold the lock
                await self._note(self._clear, group[0])
            self._holds = False
        if self._stopped:
            raise LaneClosedError(self._lane.name, "its session ends")
        if alone and settled:
            self._crashes = 0
        return True

    async def _run_together(self, group: list[Run]) -> bool:
        """Run a group; tell whether all have outcomes: a row that was not due after all waits in the table."""
        self._group, self._unsettled = {*group}, 0
        for run in group:
            run.on_end = partial(self._end, run)
            self._submit(run)
        while self._group:
            await self._woken()
        if self._unsettled and group[0].claim is None:  # the next mark would move the offset past it
            raise LaneClosedError(self._lane.name, "a suspect has no outcome in its session")
        self._left += self._unsettled
        return not self._unsettled

    def _end(self, run: Run, settled: bool) -> None:
        if run in self._group:
            self._group.remove(run)
            self._unsettled += not settled
            self._wake.set()

    def _bury(self, run: Run, crashes: int) -> None:
        """Settle a record as dead; its mark stays until that is durable."""
        run.on_end = lambda _settled: None  # its turn must go before the next mark
        outcome = crashed(run, crashes)
        run.owner.begun(run)
        run.owner.ended(run, outcome, None)
        self._crashes = 0

    def _mark(self, group: list[Run], crashes: int) -> Mark:
        first, end, life = _place(group[0]), after(_place(group[-1])), self._context.life
        upto = self._found.end if self._queue or (self._left > 0 and not self._passed) else ()
        if len(group) == 1:
            return Mark(Kind.ALONE, crashes + 1, life, first, upto=upto)
        return Mark(Kind.GROUP, len(group), life, first, end, upto)

    def _suspicion(self, group: list[Run], crashes: int) -> Observation:
        """Say which records run by themselves, and why."""
        offsets = [_offset(run) for run in group]
        named = ", ".join(map(str, offsets[:MOST_NAMED]))
        if len(group) > MOST_NAMED:
            named += f" and {len(group) - MOST_NAMED} more"
        if len(group) == 1:
            most = self._context.handler.max_crashes
            deaths = f"{counted(most, 'worker')} {'dies' if most == 1 else 'die'} of that"
            text = f"may have killed its worker: it runs alone, and is dead as crashed if {deaths}"
            text += f"; so far {crashes}" if crashes else ""
            text += "; nothing else begins in its worker" if self._context.alone.still else ""
        else:
            text = "may have killed their worker: they run together; if it dies again, half of them"
        return Observation(
            event=Event.SUSPECTED,
            handler=self._context.handler.main,
            topic=self._context.handler.main,
            partition=group[0].record.partition,
            offset=offsets[0],
            count=len(group),
            message=f"offset{'s' * (len(group) > 1)} {named} {text}. Records after them wait",
        )

    async def _note(
        self, mark: Mark, run: Run, *, past: bool = False, observations: tuple[Observation, ...] = ()
    ) -> None:
        """Commit a mark, after the turns released before; of first deliveries at the offset of `run`, or past it."""
        marked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settled(committed: bool, _offsets: tuple[int, ...]) -> None:
            if not marked.done():
                marked.set_result(committed)

        handler = self._context.handler
        source = TopicPartition(handler.main, run.record.partition)
        if run.claim is None:
            self._release()  # what ran before is durable with this, also behind records that wait
            offset = run.record.next_offset if past else run.record.offset
            if handler.order is not Order.NONE or self._before:
                offset = 0  # it stays: others are before it, of their sequences, or of a mark when there were some
            noted = mark.beside(offset) if offset else mark
            turn = Turn(source=source, next_offset=offset, note=noted.text, on_settled=settled)
        else:  # the offset stays: lanes never move one back
            turn = Turn(source=source, next_offset=0, rows_note=rows_text(mark), on_settled=settled)
        turn.observations = observations
        self._lane.submit(self._session, turn)
        if not await marked:
            raise LaneClosedError(self._lane.name, "its session ended before a suspect was marked")


def begin_suspects(
    context: DeliveryContext,
    lane: Lane,
    session: int,
    claimed: Mapping[bytes, Claim],
    release: Callable[[], None],
    found: Suspected | None,
    submit: Callable[[Run], None],
) -> Suspects | None:
    """Return the suspects of a new session, if there are any."""
    if found is None:
        return None
    return Suspects(context, lane, session, found=found, submit=submit, release=release, claimed=claimed)


def _place(run: Run) -> Place:
    return (run.record.offset,) if run.claim is None else place_of(run.claim.key)


def _offset(run: Run) -> int:
    """Return where the record was delivered first."""
    return run.record.offset if run.claim is None else parse_row_key(run.claim.key).origin_offset

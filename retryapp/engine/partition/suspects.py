"""Records that may have killed their worker run one at a time, each with a durable mark before it starts.

Else a record that kills its process would do so again and again, uncounted. The mark is committed by the record's own
lane beside the committed offset (`core.marks`); only one suspect runs in a worker at a time, so the mark that the next
life finds names the culprit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.marks import Mark, Suspected, rows_text
from retryapp.engine.delivery.deliver import crashed
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.turn import Turn
from retryapp.ports import TopicPartition


class Suspects:
    """The first deliveries, or the due rows, that may have been running when a worker died."""

    def __init__(
        self, context: DeliveryContext, lane: Lane, session: int, *, found: Suspected, submit: Callable[[Run], None]
    ) -> None:
        self._context = context
        self._lane = lane
        self._session = session
        self._crashes = found.crashes
        self._upto = found.upto
        self._left = context.handler.max_in_flight  # those after them cannot have run before
        self._submit = submit
        self._queue: deque[Run] = deque()
        self._held: list[Run] = []
        self._busy = False
        self._wake = asyncio.Event()

    def add(self, run: Run) -> None:
        """Take a record, in the order of delivery. One after the suspects waits until their outcomes are durable.

        Run at the same time, it could kill the worker in their place, life after life, and the offset would never move.
        """
        at = run.record.offset if run.claim is None else run.claim.due_at_ms
        if self._left <= 0 or at >= self._upto:
            if self._busy or self._queue:
                self._held.append(run)
            else:
                self._submit(run)
        else:
            self._left -= 1
            self._queue.append(run)
            self._wake.set()

    def passed(self, offset: int) -> None:
        """Note a skipped record: the mark may have been its own, and does not count against the next one.

        It was done before, so it is none of those that may have been running.
        """
        if offset < self._upto and not self._queue:
            self._crashes = 0

    async def run(self) -> None:
        """Run them one at a time, until `LaneClosedError`."""
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            self._busy = True
            run, crashes, self._crashes = self._queue.popleft(), self._crashes, 0
            async with self._context.alone:
                await self._run_alone(run, crashes)
            self._busy = False
            if not self._queue:
                held, self._held = self._held, []
                for each in held:
                    self._submit(each)

    async def _run_alone(self, run: Run, crashes: int) -> None:
        owner = run.owner
        if crashes >= self._context.handler.max_crashes:
            run.on_end = lambda: None  # its turn must go before the next mark
            owner.begun(run)
            owner.ended(run, crashed(run, crashes), None)
            await self._note(run, Mark(alone=False, count=0, life=self._context.life), ended=True)
            return
        await self._note(run, Mark(alone=True, count=crashes + 1, life=self._context.life))
        ended = asyncio.Event()
        run.on_end = ended.set
        self._submit(run)
        await ended.wait()
        # before another starts, or this mark would blame this record for a crash of that one
        await self._note(run, Mark(alone=False, count=0, life=self._context.life), ended=True)

    async def _note(self, run: Run, mark: Mark, *, ended: bool = False) -> None:
        """Commit a mark, after the turns released before."""
        marked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settled(committed: bool, _offsets: tuple[int, ...]) -> None:
            if not marked.done():
                marked.set_result(committed)

        source = TopicPartition(self._context.handler.main, run.record.partition)
        if run.claim is None:
            offset = run.record.next_offset if ended else run.record.offset
            turn = Turn(source=source, next_offset=offset, note=mark.text, on_settled=settled)
        else:  # the offset stays: lanes never move one back
            turn = Turn(source=source, next_offset=0, rows_note=rows_text(mark, run.claim.key), on_settled=settled)
        self._lane.submit(self._session, turn)
        if not await marked:
            raise LaneClosedError(self._lane.name, "its session ended before a suspect was marked")

"""One partition of one handler: its stations (deliver, park, fire) round one lane.

The partition lives as long as an assignment. Each time its lane opens it begins a session: empty windows at the
committed offsets, no claims, a firing task; each time the lane closes, the session ends: running handlers are given up,
their outcomes ignored, and everything is read again by whoever opens next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from retryapp.core.errors import LaneClosedError
from retryapp.core.record import Record, held_bytes
from retryapp.core.rows import parse_row_key
from retryapp.engine.fire import Ahead, fire
from retryapp.engine.lane import Lane
from retryapp.engine.park import park
from retryapp.engine.pool import DeliveryPool
from retryapp.engine.progress import OffsetWindow, ProgressTally
from retryapp.engine.run import Outcome, Run, Station
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, PendingTable, Source, TopicPartition

FIRE_LIMIT = 500
"""Rows in one firing."""
FIRE_BYTES = 1 << 20
"""Bytes of rows in one firing; a larger row fires alone."""
FIRE_QUEUED_BYTES = 8 << 20
"""Bytes of rows in firings that are not committed yet; the last firing may pass it."""
FIRE_AHEAD = 2_000
"""Fired records that the handler may have before it."""
NEVER_MS = 1 << 62
MAX_SLEEP_S = 60.0
"""Longest sleep of the firing task; it wakes earlier for an earlier row."""
BLOCKED_SLEEP_S = 0.25
"""The same while there is no room for what is due."""
ABORT_WAIT_S = 2.0
"""Longest wait of a drain for handlers that it has given up: the grace is what they had before."""
PROGRESS_MS = 60_000
"""Longest time between two `progress` events of a partition that has traffic."""
_RECORD_OVERHEAD_BYTES = 200


class PartitionEngine:
    """See the module's text."""

    def __init__(
        self,
        *,
        station: Station,
        partition: int,
        first: DeliveryPool,
        again: DeliveryPool,
        source: Source,
    ) -> None:
        self.station = station
        self.partition = partition
        self.lane: Lane
        topology = station.handler.topology
        self._main = TopicPartition(topology.main, partition)
        self._redelivery = TopicPartition(topology.redelivery, partition)
        self._retry = frozenset(TopicPartition(topic, partition) for topic in topology.retry_topics)
        self._first = first
        self._again = again
        self._source = source
        self._pending: PendingTable | None = None
        self._session = 0
        self._draining = False
        self._windows: dict[TopicPartition, OffsetWindow[Outcome]] = {}
        self._running: dict[Run, None] = {}
        """In the order in which they began: whatever ends them all takes the same course each time."""
        self._settled = asyncio.Event()
        self._claimed: set[bytes] = set()
        self._claimed_bytes = 0
        self._ahead = Ahead()
        self._fire_wake = asyncio.Event()
        self._fire_task: asyncio.Task[None] | None = None
        self._tally = ProgressTally(0, 0)
        self._last_main = 0
        self._fire_blocked = False
        self._next_due_ms = 0
        """What the firing task sleeps towards: an earlier row wakes it."""
        self._unreleased: dict[TopicPartition, None] = {}

    # -- session ------------------------------------------------------------------------------------------------

    @property
    def sources(self) -> tuple[TopicPartition, ...]:
        """Partitions whose records come here."""
        return (self._main, *sorted(self._retry), self._redelivery)

    @property
    def in_flight(self) -> int:
        """Records taken in and not settled."""
        return sum(len(window) for window in self._windows.values())

    @property
    def release_lag_ms(self) -> int:
        """Age of the oldest record that is taken in and not settled; 0 when there is none.

        Offsets are committed as a prefix: one slow record holds back what finished behind it.
        """
        oldest = [window.oldest_ms for window in self._windows.values() if window.oldest_ms is not None]
        return max(0, self.station.clock.wall_ms() - min(oldest)) if oldest else 0

    def alive(self, run: Run) -> bool:
        """See `run.RunOwner.alive`."""
        return self._alive(run.session)

    def _alive(self, session: int) -> bool:
        return session == self._session and not self._draining

    def begin(self, session: int, starts: Mapping[TopicPartition, int], pending: PendingTable) -> None:
        """Begin a session; the lane has just opened."""
        self._session = session
        self._windows = {tp: OffsetWindow() for tp in starts}
        self._unreleased.clear()
        self._claimed = set()
        self._claimed_bytes = 0
        self._ahead = Ahead()
        self._pending = pending
        self._tally = ProgressTally(starts[self._main], self.station.clock.wall_ms())
        self._fire_task = asyncio.create_task(self._fire_loop(session), name=f"fire-{self.lane.name}")

    def end(self) -> None:
        """End the session: nothing of it counts any more."""
        self._session = -1
        self._pending = None
        self._windows = {}
        for run in list(self._running):
            run.abort()
        if self._fire_task is not None:
            self._fire_task.cancel()
            self._fire_task = None

    async def drain(self, deadline_s: float) -> None:
        """Take nothing new, wait for running handlers, give up those that are not done by then and wait for them.

        Args:
            deadline_s: longest wait before they are given up; after that at most `ABORT_WAIT_S` more.
        """
        self._draining = True
        if self._fire_task is not None:
            self._fire_task.cancel()
            self._fire_task = None
        for run in list(self._running):
            if not run.begun:
                run.abort()  # what has not begun does not begin now
        try:
            async with asyncio.timeout(deadline_s):
                await self._wait_idle()
        except TimeoutError:
            for run in list(self._running):
                run.abort()
            try:
                async with asyncio.timeout(min(deadline_s, ABORT_WAIT_S)):
                    await self._wait_idle()
            except TimeoutError:
                pass  # a handler that swallows its cancellation: its outcome is ignored, the group must not wait for it

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
        handler = self.station.handler
        if window.bytes >= handler.max_in_flight_bytes:
            return 0
        return max(0, min(handler.max_in_flight - len(window), self.lane.room))

    def idle(self, tp: TopicPartition) -> bool:
        """Tell whether every record of `tp` that came in has given its turn to the lane, and more may come."""
        window = self._windows.get(tp)
        return window is not None and not len(window) and not self._draining

    def room_bytes(self, tp: TopicPartition) -> int:
        """Return how many bytes of `tp` may come in now; the last record may pass it."""
        window = self._windows.get(tp)
        return 0 if window is None else self.station.handler.max_in_flight_bytes - window.bytes

    def accept(self, tp: TopicPartition, session: int, records: Sequence[Record]) -> None:
        """Take records of a source partition, in offset order."""
        if not self._alive(session):
            return
        window = self._windows[tp]
        if tp in self._retry:
            self._park(tp, session, window, records)
            return
        pool = self._first if tp == self._main else self._again
        station = self.station
        now_ms = station.clock.wall_ms()
        for record in records:
            size = held_bytes(record.key, record.value, record.headers) + _RECORD_OVERHEAD_BYTES
            window.add(record.offset, size, now_ms=now_ms)
            pool.submit(Run(self, station, record, source=tp, session=session))

    def _park(self, tp: TopicPartition, session: int, window: OffsetWindow[Outcome], records: Sequence[Record]) -> None:
        station = self.station
        now_ms = station.clock.wall_ms()
        for record in records:
            window.add(record.offset)
            turn = park(station.handler, record, now_ms=now_ms, topic_id=station.topic_id, max_bytes=station.max_bytes)
            if turn.puts:
                turn.on_settled = partial(self._parked, parse_row_key(turn.puts[0].key).due_at_ms)
            window.finish(record.offset, turn)
        self._release(tp, session, window)

    def _parked(self, due_at_ms: int, committed: bool, _offsets: tuple[int, ...]) -> None:
        if committed and due_at_ms < self._next_due_ms:
            self._next_due_ms = due_at_ms
            self._fire_wake.set()

    def begun(self, run: Run) -> None:
        """See `run.RunOwner.begun`."""
        self._running[run] = None

    def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        """See `run.RunOwner.ended`."""
        self._running.pop(run, None)
        if not self._running:
            self._settled.set()
        if run.session != self._session:
            return
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
        turns = [*self._turns(tp, outcomes)]
        try:
            for turn in turns:
                self.lane.submit(session, turn)
        except LaneClosedError:
            return  # the session is over; the records will be read again
        if tp == self._main:
            fine = sum(isinstance(outcome, int) or outcome.fine for outcome in outcomes)
            self._tally.count(received=len(outcomes), ok=fine)
            self._last_main = turns[-1].next_offset
            if self.station.clock.wall_ms() - self._tally.since_ms >= PROGRESS_MS:
                self._note_progress(session)
        elif tp == self._redelivery:
            self._ahead.finished(turns[-1].next_offset)
            if self._fire_blocked:
                self._fire_wake.set()
        if len(window) <= self.station.handler.max_in_flight // 2:  # in batches: one event of Faust's costs as much
            self._source.wanted(tp)

    def _turns(self, tp: TopicPartition, outcomes: Sequence[Outcome]) -> Iterator[Turn]:
        """Make one turn of each row of records that were fine at once."""
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
        seen = Observation(
            event=Event.SUCCEEDED,
            handler=tp.topic,
            topic=tp.topic,
            partition=tp.partition,
            offset=next_offset - 1,
            attempt=1,
            count=count,
        )
        return Turn(source=tp, next_offset=next_offset, observations=(seen,))

    def _note_progress(self, session: int) -> None:
        """Say on the events topic what was counted since the last time."""
        if not self._tally.received:
            return
        station = self.station
        now_ms = station.clock.wall_ms()
        turn = self._tally.turn(station.handler, partition=self.partition, to_offset=self._last_main, now_ms=now_ms)
        try:
            self.lane.submit(session, turn)
        except LaneClosedError:
            return  # what was counted is counted again when the records are read again

    def on_room(self) -> None:
        """The lane has committed: there may be room for what waited."""
        if self._fire_blocked:
            self._fire_wake.set()

    # -- firing -------------------------------------------------------------------------------------------------

    async def _fire_loop(self, session: int) -> None:
        try:
            await self._fire_until_over(session)
        except LaneClosedError:
            return
        except Exception as exc:  # noqa: BLE001 - without this task nothing would ever fire again, in silence
            if session == self._session:
                self.lane.fail(exc)

    async def _fire_until_over(self, session: int) -> None:
        clock = self.station.clock
        while self._alive(session):
            await self.lane.ready()  # one look and one turn for all that is due by then
            if not clock.trusted:
                await asyncio.sleep(BLOCKED_SLEEP_S)
                continue
            self._fire_wake.clear()
            self._next_due_ms = 0  # whatever is parked meanwhile is looked at by the scan, or wakes
            next_due_ms = await self._fire_due(session)
            self._next_due_ms = NEVER_MS if next_due_ms is None else next_due_ms
            wait_s = MAX_SLEEP_S
            if next_due_ms is not None and not self._fire_blocked:
                # not compared with "is it due": a row may become due between the scan and this line
                wait_s = min(wait_s, (next_due_ms - clock.wall_ms()) / 1000)
            elif self._fire_blocked:
                wait_s = BLOCKED_SLEEP_S  # room wakes this task; the sleep is bounded in case it was there already
            if wait_s > 0:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._fire_wake.wait()
                except TimeoutError:
                    pass
            else:
                await asyncio.sleep(0)

    async def _fire_due(self, session: int) -> int | None:
        """Queue what is due, as far as there is room; return the next due time."""
        station, pending = self.station, self._pending
        while pending is not None and self._alive(session):
            limit = min(FIRE_LIMIT, FIRE_AHEAD - len(self._ahead), self.lane.room)
            if self._claimed_bytes >= FIRE_QUEUED_BYTES:
                limit = 0
            self._fire_blocked = limit <= 0
            now_ms = station.clock.wall_ms()
            rows, next_due_ms = pending.due(now_ms, max(0, limit), self._claimed, max_bytes=FIRE_BYTES)
            if not rows:
                return next_due_ms
            turn = fire(
                station.handler,
                rows,
                partition=self.partition,
                now_ms=now_ms,
                topic_id=station.topic_id,
                max_bytes=station.max_bytes,
            )
            keys = [key for key, _ in rows]
            size = sum(len(value) for _, value in rows)
            redelivered = [n for n, out in enumerate(turn.publishes) if out.topic == self._redelivery.topic]
            turn.on_settled = self._on_fired(session, keys, size, redelivered)
            self._claimed.update(keys)
            self._claimed_bytes += size
            self._ahead.queued(len(redelivered))
            self.lane.submit(session, turn)
            if next_due_ms is None or next_due_ms > now_ms:
                return next_due_ms
            await asyncio.sleep(0)  # many partitions have a flood at once: others in the event loop come between
        return None

    def _on_fired(
        self, session: int, keys: list[bytes], size: int, redelivered: list[int]
    ) -> Callable[[bool, tuple[int, ...]], None]:
        def settled(committed: bool, offsets: tuple[int, ...]) -> None:
            if session != self._session:
                return
            self._claimed.difference_update(keys)
            self._claimed_bytes -= size
            self._ahead.fired(len(redelivered), [offsets[n] for n in redelivered] if committed else ())
            if self._fire_blocked:
                self._fire_wake.set()

        return settled

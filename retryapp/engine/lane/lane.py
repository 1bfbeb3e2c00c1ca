"""Carry the turns of one handler and partition in transactions, in order, one at a time.

Life of a lane (docs/protocol.md, rules 13, 19, 26 and 32):

1. open: prove membership, take a new producer (fences the former owner), prove again, read committed offsets and the
   tail of the changelog, set the consumer back, let records flow;
2. serve: everything queued meanwhile joins the next transaction; offsets alone wait for a tick. After a transaction
   the lane rests about as long as it took, unless a full one waits: where lanes compete for broker and processor,
   fewer and larger transactions have the lower latency;
3. if a topic refuses a hand-off, its transaction did not happen: commit less and less at once until the refused turn
   is alone, then hold it back and go on without it (`engine.lane.refused`);
4. on *any* other error: drop all turns, hold the partition, close producer and store, and open again. The outcome of
   an unknown commit is found by reading, never by repeating;
5. finish (revoke, shutdown): commit what is queued, then close.

No turn outlives its producer: turns of an older session are refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import islice

from retryapp.core.lane_errors import HandOffRefusedError, LaneClosedError
from retryapp.core.publication import Publication
from retryapp.core.row_keys import parse_row_key
from retryapp.engine.lane.limits import LaneLimits as LaneLimits
from retryapp.engine.lane.limits import within
from retryapp.engine.lane.refused import RefusedTurns
from retryapp.engine.lane.timers import Timers
from retryapp.engine.lane.transport import LaneProtocol, NotMemberError, RebalancingError
from retryapp.engine.lane.turn import Turn
from retryapp.ports import Clock, Event, LaneBatch, LaneReceipt, Observation, Observer, TopicPartition

_EXPLAIN_S = 2.0
"""Longest wait for the limit of a topic that has refused a record."""


class LaneState(StrEnum):
    """State of a lane."""

    OPENING = "opening"
    OPEN = "open"
    IDLE = "idle"
    CLOSED = "closed"


class Lane:
    """The lane of one handler and partition."""

    def __init__(
        self,
        *,
        name: str,
        handler: str,
        partition: int,
        transport: LaneProtocol,
        clock: Clock,
        observer: Observer,
        on_open: Callable[[int, Mapping[TopicPartition, int]], None],
        on_close: Callable[[], None],
        on_applied: Callable[[list[Turn]], None],
        limits: LaneLimits | None = None,
        ordered: bool = False,
    ) -> None:
        self.name = name
        self.state = LaneState.OPENING
        self.session = 0
        self.last_error: str | None = None
        self._handler = handler
        self._partition = partition
        self._transport = transport
        self._clock = clock
        self._observer = observer
        self._on_open = on_open
        self._on_close = on_close
        self._on_applied = on_applied
        self._limits = limits or LaneLimits()
        self._queue: deque[Turn] = deque()
        self._submitted = 0
        self._urgent = 0
        self._queued_bytes = 0
        self._most = self._limits.turns
        """Turns in the next transaction: fewer while a refused one is looked for."""
        self._ordered = ordered
        """No turn may overtake another."""
        self._refused = RefusedTurns(self._retry, ordered=ordered)
        self._wake = asyncio.Event()
        self._finishing = False
        self._failure: Exception | None = None
        self._timers = Timers()
        self._tick_due = False
        self._ready = True
        """It neither commits nor rests."""
        self._idle = True
        self._positions: dict[TopicPartition, int] = {}
        self._opened_s: float | None = None
        self._committed = False

    # -- what partitions call -----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Turns of the main topic that the lane takes before it is full."""
        refused = self._refused.floor is not None or (self._ordered and self._refused.error is not None)
        full = refused or self._queued_bytes >= self._limits.backlog_size
        return 0 if full or self.state is not LaneState.OPEN else self._limits.backlog - len(self._queue)

    @property
    def failing(self) -> bool:
        """Whether its session is about to end."""
        return self._failure is not None

    @property
    def refusal(self) -> HandOffRefusedError | None:
        """Why it holds turns back, or None."""
        return self._refused.error

    @property
    def busy(self) -> bool:
        """Whether it has turns that are not in the tables."""
        return bool(self._queue) or not self._ready or self._refused.commanded

    def submit(self, session: int, turn: Turn) -> None:
        """Queue a turn, or raise `LaneClosedError`: its session is over, and its records will be read again."""
        if self.state is not LaneState.OPEN or session != self.session:
            raise LaneClosedError(self.name, f"session {session} is over")
        turn.number = self._submitted = self._submitted + 1
        self._queue.append(turn)
        self._queued_bytes += turn.size
        if turn.urgent:
            self._urgent += 1
            if self._rested not in self._timers:
                self._wake.set()
        elif self._tick not in self._timers:
            self._timers.begin(self._tick, self._limits.tick_s)

    def finish(self) -> None:
        """Commit what is queued and end `run`."""
        self._finishing = True
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """Close and open again: something outside the lane went wrong with its records."""
        self._failure = error
        self._wake.set()

    async def run(self) -> None:
        """Open and serve until finished, cancelled or no longer a member."""
        backoff_s = self._limits.first_backoff_s
        try:
            while not self._finishing:
                try:
                    async with within(self._limits.open_s, "opening it"):
                        await self._open()
                    await self._serve()
                except (NotMemberError, RebalancingError) as exc:
                    self.last_error = str(exc)
                    if self._drop():
                        self._report(Event.LANE_CLOSED, message=str(exc))
                    self.state = LaneState.IDLE
                    return
                except Exception as exc:  # noqa: BLE001 - every error ends in one procedure
                    if self._was_steady():
                        backoff_s = self._limits.first_backoff_s
                    await self._give_up(exc)
                    await self._back_off(backoff_s)
                    backoff_s = min(backoff_s * 2, self._limits.last_backoff_s)
        finally:
            await self._close()

    def _was_steady(self) -> bool:
        """Tell whether the failed session was sound; one that only opened proves nothing."""
        if self._opened_s is None:
            return False
        lasted_s = self._clock.monotonic_s() - self._opened_s
        return lasted_s >= (self._limits.last_backoff_s if self._committed else self._limits.steady_s)

    async def _back_off(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._finishing:
                    self._wake.clear()
                    await self._wake.wait()

    # -- opening and closing ------------------------------------------------------------------------------------

    async def _open(self) -> None:
        transport = self._transport
        started_s = self._clock.monotonic_s()
        self.state = LaneState.OPENING
        self._failure = None
        self._opened_s, self._committed = None, False
        await transport.hold()  # nothing fetched before may come in after the seek, whatever an earlier hold came to
        await transport.prove()
        await transport.fence()
        await transport.prove()
        starts = await transport.committed()
        await transport.recover()
        self.session += 1
        self.state = LaneState.OPEN
        self._positions, self._idle = dict(starts), True
        self._timers.begin(self._renew, self._limits.renew_s)
        self._on_open(self.session, starts)
        self._report(Event.LANE_OPENED, duration_ms=round((self._clock.monotonic_s() - started_s) * 1000))
        await transport.release(starts)
        self.last_error = None
        self._opened_s = self._clock.monotonic_s()

    async def _give_up(self, exc: Exception) -> None:
        self.last_error = f"{type(exc).__name__}: {exc}"
        self._report(Event.LANE_FAILED, error_type=type(exc).__name__, message=str(exc))
        self._drop()
        try:
            async with within(self._limits.open_s, "holding its partitions"):
                await self._transport.hold()
        except Exception as hold_error:  # noqa: BLE001 - the consumer may be gone
            self.last_error = f"{self.last_error}; then {type(hold_error).__name__}: {hold_error}"
        await self._transport.close()

    async def _close(self) -> None:
        was_open = self._drop()
        if self.state is not LaneState.IDLE:
            self.state = LaneState.CLOSED
        await self._transport.close()
        if was_open:
            self._report(Event.LANE_CLOSED)

    def _drop(self) -> bool:
        """Drop uncommitted turns (their records are read again); tell whether that ended a session."""
        was_open = self.state is LaneState.OPEN
        turns = [*self._refused.end(), *(turn for turn in self._queue if turn.refusal is None)]
        self._refused = RefusedTurns(self._retry, ordered=self._ordered)
        self._queue, self._most = deque(), self._limits.turns
        self._urgent = self._queued_bytes = 0
        self._tick_due = False
        self._timers.end_all()
        self._ready = True
        if was_open:
            self.state = LaneState.OPENING
            self._on_close()
        for turn in turns:
            if turn.on_settled is not None:
                turn.on_settled(False, ())
        return was_open

    # -- serving ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._tick_due = True
        self._wake.set()

    def _renew(self) -> None:
        """Use the transactional id, if it was idle, so that the broker does not forget it."""
        self._timers.begin(self._renew, self._limits.renew_s)
        idle, self._idle = self._idle, True
        if idle:
            self._repeat_offset()

    def _confirm(self) -> None:
        """Use the producer once more: the broker refuses it if its last transaction was rolled back (F4)."""
        self._timers.begin(self._confirm, self._limits.confirm_s)
        self._repeat_offset()

    def _repeat_offset(self) -> None:
        if self._positions and not self._queue and self._ready:  # else a turn is on its way
            source, offset = next(iter(self._positions.items()))
            self.submit(self.session, Turn(source=source, next_offset=offset))

    def _rested(self) -> None:
        self._ready = True
        asyncio.get_running_loop().call_soon(self._wake.set)  # behind what can run now: its turns come along

    def _wanted(self) -> bool:
        idle = self._rested in self._timers or not (self._urgent or self._tick_due)
        return self._failure is not None or self._finishing or not idle

    async def _serve(self) -> None:
        while True:
            while not self._wanted():
                self._wake.clear()
                await self._wake.wait()
            if self._failure is not None:
                raise self._failure
            due = self._tick_due
            self._tick_due = bool(self._queue) and await self._transact() and due
            if self._finishing and not self._queue:
                async with within(self._limits.commit_s, "its last request"):
                    await self._transport.rest()
                return
            if self._queue and not self._urgent and self._tick not in self._timers:
                self._timers.begin(self._tick, self._limits.tick_s)

    async def _transact(self) -> bool:
        """Commit what fits into one transaction; tell whether there was more."""
        turns, batch = self._take()
        if not turns:  # all that were there wait for a held one
            return False
        self._timers.end(self._rested)
        self._ready = False
        began_s = self._clock.monotonic_s()
        more = bool(self._queue)
        try:
            async with within(self._limits.commit_s, "a commit"):
                receipt = await self._transport.commit(batch)
                await self._transport.turn(batch)
            self._transport.apply(batch, receipt)
        except HandOffRefusedError as exc:
            await self._take_back(turns, exc)
            self._ready = True
            return True
        except BaseException:
            self._put_back(turns)  # the outcome is unknown until the topics were read again
            raise
        self._most = min(2 * self._most, self._limits.turns)
        self._committed = True
        self._idle = False
        self._positions |= batch.offsets
        self._timers.end(self._confirm)
        if batch.changes:
            self._timers.begin(self._confirm, self._limits.confirm_s)
        self._begin_rest(self._clock.monotonic_s() - began_s)
        self._settle(turns, receipt)
        return more

    async def _take_back(self, turns: list[Turn], refusal: HandOffRefusedError) -> None:
        """Hold back a turn that a topic refuses, if it was alone; else queue all again, to try fewer at once."""
        alone, left, spare = len(turns) == 1, list[Turn](), list[Turn]()
        for turn in turns:
            (spare if turn.spare and (alone or turn.denied) else left).append(turn)
        first = left[0] if alone and left else None
        if first is not None and any(isinstance(o, Publication) and o.topic == refusal.topic for o in first.publishes):
            self._put_back(turns)
            raise refusal  # in the next session the attempt that publishes it fails
        told = first is not None and first.refusal is not None
        self._most = max(1, len(turns) // 2)
        for turn in spare:
            if turn.on_settled is not None:
                turn.on_settled(False, ())
        if first is None:
            self._put_back(left)
        else:
            self._refused.hold(first, refusal)
        async with within(self._limits.open_s, "a new producer"):
            await self._transport.renew()
        if first is not None and not told:
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXPLAIN_S):
                    first.refusal = await self._transport.explain(refusal)
            self._report_refused(Event.HAND_OFF_REFUSED, first)

    def _retry(self, turn: Turn) -> None:
        self._most = 1
        self._put_back([turn])
        self._tick_due = True
        self._wake.set()

    def _report_refused(self, event: Event, turn: Turn) -> None:
        offset = turn.floor if turn.claim is None else parse_row_key(turn.claim).origin_offset
        error_type, message = type(turn.refusal).__name__, str(turn.refusal)
        self._report(event, topic=self._handler, offset=offset, error_type=error_type, message=message)

    def _put_back(self, turns: list[Turn]) -> None:
        self._queue.extendleft(reversed(turns))
        self._queued_bytes += sum(turn.size for turn in turns)
        self._urgent += sum(turn.urgent for turn in turns)

    def _begin_rest(self, took_s: float) -> None:
        limits = self._limits
        seconds = min(took_s * limits.rest, limits.longest_rest_s)
        waiting = sum(max(1, turn.changes) for turn in islice(self._queue, limits.changes))  # a turn may be full alone
        if seconds > 0 and waiting < limits.changes and self._queued_bytes < limits.size:
            self._timers.begin(self._rested, seconds)
        else:
            self._ready = True

    def _take(self) -> tuple[list[Turn], LaneBatch]:
        batch = LaneBatch()
        turns: list[Turn] = []
        size = changes = 0
        while self._queue and len(turns) < self._most:
            turn = self._queue[0]
            size += turn.size
            changes += turn.changes
            if turns and (size > self._limits.size or changes > self._limits.changes):
                break
            self._queue.popleft()
            self._queued_bytes -= turn.size
            if turn.urgent:
                self._urgent -= 1
            if self._refused.keep(turn):
                continue
            turns.append(turn)
            turn.join(batch, self._positions)
        return turns, batch

    def _settle(self, turns: list[Turn], receipt: LaneReceipt) -> None:
        at = 0
        for turn in turns:
            n = len(turn.publishes)
            if turn.on_settled is not None:
                turn.on_settled(True, tuple(receipt.published_offsets[at : at + n]))
            at += n
            if turn.refusal is not None:
                self._put_back(self._refused.release())
                # those that waited may have come after some that were taken back meanwhile
                self._queue = deque(sorted(self._queue, key=lambda each: (each.refusal is None, each.number)))
                self._report_refused(Event.HAND_OFF_ACCEPTED, turn)
            for observation in turn.observations:
                self._observer.observe(observation)
        self._on_applied(turns)

    def _report(self, event: Event, **facts: object) -> None:
        self._observer.observe(Observation(event=event, handler=self._handler, partition=self._partition, **facts))  # type: ignore[arg-type]

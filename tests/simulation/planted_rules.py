"""Planted faults of single rules, from taking in to the clock; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from retryapp.core import hops, skew
from retryapp.core.durations import format_duration_ms
from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.core.rows import row_due_ms
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery import deliver
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.refused import RefusedTurns
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.suspects import Suspects
from retryapp.engine.worker.placement import Placer
from retryapp.ports import Clock, Committed, Row
from simulation import worker
from simulation.consumer import SimConsumer
from simulation.lanes import SimLane
from simulation.worker import SimClock


async def _commits_too(self: SimConsumer, member: str, generation: int) -> bool:
    """The client commits what it has fetched, with each heartbeat."""
    fetched = {tp: Committed(at, "") for tp, at in self._positions.items() if tp in self._flowing}
    self._worker.broker.commit_offsets(member, generation, fetched)
    return await _stays(self, member, generation)


_stays = SimConsumer._stays


async def _where_it_begins(self: SimLane) -> Any:
    """A lane whose records were deleted unread begins where the topic does."""
    logs = self.broker.logs
    return {tp: Committed(max(at.offset, logs[tp].start), at.note) for tp, at in (await _fetch_committed(self)).items()}


_fetch_committed = SimLane.fetch_committed


def _endless(self: PartitionEngine, _tp: Any) -> int:
    """Records are taken in whatever is in flight."""
    return 1_000 if self.session is not None and not self._draining else 0


def _claimed_anyway(self: Scheduler) -> int:
    """Rows are claimed where the group may have given the partition away."""
    context, self._context = self._context, replace(self._context, lapsed=lambda: False)
    try:
        return _room(self)
    finally:
        self._context = context


_room: Callable[[Scheduler], int] = Scheduler.room.fget  # type: ignore[attr-defined]


class _Trusting:
    """A clock that is never in doubt."""

    trusted = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def _undoubting(self: Scheduler, context: DeliveryContext, *more: Any) -> None:
    """Rows are claimed while the clock is in doubt."""
    clock: Any = _Trusting(context.clock)
    _schedule(self, replace(context, clock=clock), *more)


_schedule = Scheduler.__init__


def _beside_suspects(self: Suspects, run: Run) -> None:
    held = len(self._held)
    _add(self, run)
    for other in self._held[held:]:
        self._submit(other)
    del self._held[held:]


_add = Suspects.add


def _latest_first(self: Lane) -> Any:
    """What was queued last is committed first."""
    self._queue.reverse()
    return _take(self)


_take = Lane._take


async def _no_wait(_self: Lane, _seconds: float) -> None:
    """A lane that has failed opens again at once."""


def _shared(handler: Any, _rounds: Any) -> Any:
    """Redeliveries have the runners of first deliveries."""
    both = DeliveryPool(handler.concurrency // 2, "both")  # it is started twice
    return both, both


def _published_anyway(run: Run, failed_ms: int, error: BaseException, decision: Any = None) -> Turn:
    """What a failed attempt has published goes with its hand-off."""
    turn = _failed_turn(run, failed_ms, error, decision)
    for wish in (run.outbox and run.outbox._wishes) or ():
        turn.publishes += (Outgoing(wish.destination.topic, wish.partition or 0, wish.key, wish.value, ()),)
    return turn


def _no_row(run: Run, failed_ms: int, error: BaseException, decision: Any = None) -> Turn:
    """A failed first delivery is copied, and does not wait."""
    turn = _failed_turn(run, failed_ms, error, decision)
    turn.rows = () if run.claim is None else turn.rows
    return turn


def _by_due_time(run: Run, failed_ms: int, error: BaseException, decision: Any = None) -> Turn:
    """As if the changelog's key were the due time: the former row is removed beside the new one."""
    turn = _failed_turn(run, failed_ms, error, decision)
    if run.claim is not None and turn.rows and row_due_ms(turn.rows[0].value or b"") == run.claim.due_at_ms:
        turn.rows = (*turn.rows, Row(run.claim.identity, None, "?"))
    return turn


_failed_turn = deliver._failed_turn


def _anew(previous: Any, **facts: Any) -> Any:
    return replace(_after_failure(previous, **facts), delivery=facts["attempt"])


_after_failure = hops.after_failure


def _at_its_row(record: Record, metadata: Any) -> Record:
    return replace(_restore(record, metadata), timestamp_ms=record.timestamp_ms)


_restore = hops.restore


def _present_tiers(self: PartitionEngine, session: int, starts: Any, transport: Any) -> None:
    """Rows of tiers that the policy does not have wait on."""
    _begin(self, session, starts, transport)
    pending, topology = transport.pending, self.context.handler.topology
    present, due = {format_duration_ms(delay_ms) for delay_ms in topology.delays_ms}, pending.due

    def present_due(now_ms: int, limit: int, claimed: Any = (), **more: Any) -> Any:
        absent = {key for key, row in pending.rows.items() if row.tier not in present}
        return due(now_ms, limit, {*claimed, *absent}, **more)

    pending.due = present_due


_begin = PartitionEngine.begin


async def _at_once(self: PartitionEngine, _deadline_s: float) -> None:
    """A drain does not wait for handlers."""
    await _drain(self, 0.0)


_drain = PartitionEngine.drain


def _left(self: Lane) -> None:
    """What is queued at a drain is not committed."""
    self._queue.clear()
    _finish(self)


_finish = Lane.finish


def _apart(**facts: Any) -> LaneSite:
    """Each worker has a transactional id of its own."""
    _apart.number += 1  # type: ignore[attr-defined]
    return LaneSite(**{**facts, "name": f"{facts['name']}.{_apart.number}"})  # type: ignore[attr-defined]


_apart.number = 0  # type: ignore[attr-defined]


def _together(**facts: Any) -> LaneSite:
    """Two handlers have the transactional ids of their group."""
    return LaneSite(**{**facts, "name": f"{facts['group']}.{facts['partition']}"})


def _nothing(*_what: Any, **_how: Any) -> None:
    """It is left out."""


def _not_dropped(self: Lane) -> bool:
    """Outcomes that are not committed when a session ends are so in the next one, which reads their records again."""
    turns = [turn for turn in self._queue if turn.refusal is None and turn.on_settled is None]
    was_open = _drop(self)
    self._put_back(turns)
    return was_open


_drop = Lane._drop


def _without_outcomes(self: Scheduler) -> int:
    """Rows whose outcomes are on their way to the broker are not in flight."""
    claimed = self.claimed
    self.claimed = {key: claim for key, claim in claimed.items() if not claim.changing}
    try:
        return _free(self)
    finally:
        self.claimed = claimed


_free: Callable[[Scheduler], int] = Scheduler._free.fget  # type: ignore[attr-defined]


RULES: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("the client commits what it has fetched", ((SimConsumer, "_stays", _commits_too),), 1),
    ("records are taken in without a bound", ((PartitionEngine, "room", _endless),), 0),
    ("a lane begins where its topic does", ((SimLane, "fetch_committed", _where_it_begins),), 332),
    ("outcome of an old session taken", ((Lane, "_drop", _not_dropped),), 54),
    ("bound without undurable outcomes", ((Scheduler, "_free", property(_without_outcomes)),), 19),
    ("what was queued last is committed first", ((Lane, "_take", _latest_first),), 1),
    ("offsets pass a refused turn", ((RefusedTurns, "keep", lambda _self, _turn: False),), 286),
    ("a lane that has failed does not wait", ((Lane, "_back_off", _no_wait),), 363),
    ("a record runs beside a run of itself", ((PartitionEngine, "waits", lambda _self, _run: False),), 63),
    ("rows are claimed after the session may be over", ((Scheduler, "room", property(_claimed_anyway)),), 465),
    ("handlers are called after the session may be over",
     ((PartitionEngine, "alive", lambda self, run: self._session_of(run.session) is not None),), 275),
    ("what comes after suspects runs beside them", ((Suspects, "add", _beside_suspects),), 0),
    ("redeliveries take the runners of first deliveries", ((worker, "make_pools", _shared),), 9),
    ("a failed attempt publishes", ((deliver, "_failed_turn", _published_anyway),), 0),
    ("a failed first delivery has no row", ((deliver, "_failed_turn", _no_row),), 1),
    ("a row is removed by its due time", ((deliver, "_failed_turn", _by_due_time),), 172),
    ("deliveries are counted as attempts", ((deliver, "after_failure", _anew),), 27),
    ("a redelivery has the time of its row", ((deliver, "restore", _at_its_row),), 1),
    ("a fault of ours does not fail its lane", ((Lane, "fail", _nothing),), 121),
    ("rows of a former policy wait on", ((PartitionEngine, "begin", _present_tiers),), 10),
    ("copies go to the topic of the first delay",
     ((HandlerTopology, "retry_topic_for", lambda self, _delay_ms: self.retry_topics[0]),), 3),
    ("a drain waits for no handler", ((PartitionEngine, "drain", _at_once),), 472),
    ("what is queued at a drain is dropped", ((Lane, "finish", _left),), 472),
    ("an idle lane does not use its transactional id", ((Lane, "_renew", _nothing),), 23),
    ("a lane that ended with an error leaves its worker alive", ((Placer, "_end_if_broken", _nothing),), 395),
    ("each worker has its own transactional ids", ((worker, "LaneSite", _apart),), 24),
    ("two handlers share transactional ids", ((worker, "LaneSite", _together),), 3),
    ("a failure counts from the earliest that it may be", ((SimClock, "latest_ms", SimClock.wall_ms),), 1960),
    ("the machine's clock decides what is due", ((SimClock, "anchor", _nothing), (SimClock, "trusted", True)), 1),
    ("rows are claimed while the clock is in doubt", ((Scheduler, "__init__", _undoubting),), 337),
    ("one false time is believed", ((skew, "AGREEING", 1),), 337),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

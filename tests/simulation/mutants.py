"""Planted faults of the protocol: each must be found by the simulation, or it could not find real ones.

A mutant replaces one step of the engine (or one property of the client that it relies on) while histories run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from retryapp.core import marks
from retryapp.core.decide import RetryAt, decide
from retryapp.engine.delivery import judge, pool
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane import transport
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition import scheduler
from retryapp.engine.partition.duplicates import Duplicates
from retryapp.engine.partition.progress import Counting, OffsetWindow
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.session import Session
from retryapp.engine.worker.placement import Placer
from retryapp.ports import Committed, LaneBatch, LaneReceipt, TopicPartition
from retryapp.testing import MemoryPendingTable
from retryapp.testing.broker import MemoryBroker
from simulation.beyond_mutants import BEYOND
from simulation.lanes import SimLane
from simulation.planted_calls import CALLS
from simulation.planted_commands import COMMANDS
from simulation.planted_damage import DAMAGE
from simulation.planted_deadlines import DEADLINES
from simulation.planted_floors import FLOORS
from simulation.planted_letters import LETTERS
from simulation.planted_modes import MODED
from simulation.planted_order import ORDER
from simulation.planted_pace import PACE
from simulation.planted_references import REFERENCES
from simulation.planted_rules import RULES
from simulation.planted_suspects import SUSPECTS
from simulation.planted_through import THROUGH
from simulation.planted_verdicts import VERDICTS
from simulation.planted_world import WORLD

EARLY_MS = 400


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault."""

    name: str
    patches: tuple[tuple[Any, str, Any], ...]
    """What is replaced: owner, attribute, by what."""
    seed: int = 1
    """Tried first: it is known to find a fault that few histories meet."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        running = [patch.object(owner, name, new) for owner, name, new in self.patches]
        for each in running:
            each.start()
        try:
            yield
        finally:
            for each in reversed(running):
                each.stop()


# -- the order of writes ----------------------------------------------------------------------------------------------


async def _offsets_outside(self: SimLane, batch: LaneBatch) -> LaneReceipt:
    """Offsets beside the transaction, as a plain commit of Faust's would move them."""
    if batch.offsets:
        broker, offsets = self.worker.broker, self._beside().beside(batch)
        await self.worker.wire.request("move", lambda: broker._move(offsets))
    await self.begin()
    sent_ms = self.clock.counted_ms()
    sent, logged = await self.send(batch.publishes), await self._log(batch)
    self._anchor(sent_ms, sent, logged)
    published, written = await sent.offsets(), await logged.offsets()
    await self.end_transaction()
    return LaneReceipt(published, max(written, default=None))


async def _unknown_is_done(self: LaneProtocol, batch: LaneBatch) -> LaneReceipt:
    try:
        return await _commit(self, batch)
    except TimeoutError:
        return LaneReceipt([0] * len(batch.publishes), 0)


async def _store_first(self: LaneProtocol, batch: LaneBatch) -> LaneReceipt:
    """The local store before the commit, with the offset that the changelog would have."""
    if self.pending is not None and batch.rows:
        self.pending.write(batch.rows, self.pending.next_offset + len(batch.rows))
    return await _commit(self, batch)


_commit = LaneProtocol.commit


async def _repeat(self: Lane) -> None:
    """A turn whose commit is unknown is sent again, with a new producer, without looking at what there is."""
    try:
        await _lane_transact(self)
    except TimeoutError:
        await self._transport.fence()
        self._urgent = sum(turn.urgent for turn in self._queue)
        await _lane_transact(self)


_lane_transact = Lane._transact

# -- opening and ownership --------------------------------------------------------------------------------------------


async def _read_before_fence(self: SimLane) -> Mapping[TopicPartition, Committed]:
    return self.worker.early[self.place.name]


async def _fence_late(self: LaneProtocol) -> None:
    lane: Any = self
    broker, sources = lane.worker.broker, list(lane.place.sources)
    lane.worker.early[lane.place.name] = await lane.worker.wire.request("committed", lambda: broker.offsets_of(sources))
    await asyncio.sleep(1.0)  # whatever else an opening may do in between
    await lane.start_producer()


async def _same_producer(self: SimLane) -> None:
    """The epoch that the id has already: nobody is fenced, nothing is aborted."""
    broker = self.worker.broker
    producer = broker._producers.get(self.place.name)
    self.epoch = broker.init_producer(self.place.name) if producer is None else producer.epoch


async def _at_once(_self: Placer, _lane: Lane) -> None:
    """Lanes open while the rebalance goes on."""


async def _hold_nothing(_self: LaneProtocol) -> None:
    """What was fetched before a lane opens stays."""


def _uncommitted(self: MemoryBroker, tp: TopicPartition, start: int, limit: int = 1 << 30, **_: Any) -> Any:
    """Rows of transactions that were aborted are taken for rows."""
    return _read(self, tp, start, limit, committed=False)


_read = MemoryBroker.read

# -- progress and tables ----------------------------------------------------------------------------------------------


def _finished_anywhere(self: OffsetWindow[Any]) -> list[Any]:
    """Outcomes as they come: the offset passes what is still running."""
    done = [entry for entry in self._entries if entry.done]
    for entry in done:
        self._entries.remove(entry)
        self.bytes -= entry.size
    self.waiting = 0
    return [entry.outcome for entry in done]


async def _no_recovery(self: LaneProtocol) -> None:
    self.pending = self.open_pending()


def _not_applied(*_what: Any) -> None:
    """The table of seen events is written when a lane opens, and not while it works."""


def _unwritten(_self: Duplicates, _turn: Any, _now_ms: int) -> None:
    """Events are known to the session that saw them, and lost with it."""


async def _no_events(open_seen: Callable[[], Any], *_where: Any, **_when: Any) -> Any:
    """The events that others have seen are not read."""
    return open_seen()


async def _anew(*_: Any) -> tuple[Mapping[TopicPartition, int], str]:
    return {}, ""


def _lose_the_start(self: MemoryPendingTable, records: Any, next_offset: int) -> None:
    """A recovery that begins one record too late."""
    _recover(self, list(records)[1:], next_offset)


_recover = MemoryPendingTable.recover


def _rows_of_nobody(self: MemoryPendingTable, now_ms: int, limit: int, _claimed: Any = (), **more: Any) -> Any:
    """Claims are not looked at: a row may be in two turns."""
    return _due(self, now_ms, limit, (), **more)


def _due_early(self: MemoryPendingTable, now_ms: int, limit: int, claimed: Any = (), **more: Any) -> Any:
    return _due(self, now_ms + EARLY_MS, limit, claimed, **more)


_due = MemoryPendingTable.due


def _not_looked(_run: Run) -> bool:
    """The due time is not looked at again at the call."""
    return True


def _unheard(_self: Scheduler, _due_at_ms: int) -> None:
    """A new row does not wake the scheduler."""


def _let_go(self: Session, *, ahead: bool = False) -> None:
    """A claim ends when its turn is in the lane."""
    claims = [turn.claim for turn in self._outcomes if turn.claim is not None]
    _release(self, ahead=ahead)
    for key in claims:
        self.scheduler.release(key)


_release = Session.release


def _left_behind(self: Run, **changes: Any) -> Turn:
    """The row of a record that has ended stays."""
    turn = _settle(self, **changes)
    turn.rows = tuple(row for row in turn.rows if row.value is not None)
    return turn


_settle = Run.settle


def _not_handed_off(self: Run, **changes: Any) -> Turn:
    """A row goes, and what became of its record is not said."""
    turn = _settle(self, **changes)
    if self.claim is not None:
        turn.publishes, turn.rows = (), tuple(row._replace(value=None) for row in turn.rows)
    return turn


async def _unmarked(_self: LaneProtocol, _table: object) -> None:
    """A life does not note that it delivers rows."""


async def _sleep_it_off(pool: DeliveryPool, run: Run) -> Any:
    """The delay of a record that has failed is slept where healthy ones would be delivered."""
    error = await _called(pool, run)
    if error is not None:
        await asyncio.sleep(3.0)
    return error


_called = DeliveryPool._call


def _silent(_self: Lane) -> None:
    """A broker that took the last transaction back is not found out."""


def _for_ever(policy: Any, **told: Any) -> Any:
    decision = _decide(policy, **told)
    return decision if isinstance(decision, RetryAt) else RetryAt(told["now_ms"] + 100, 100, "300ms")


_decide = decide


def _not_looked_for(_self: MemoryPendingTable) -> None:
    """What the store wrote last is not looked for in the changelog."""


def _kept(self: LaneProtocol, batch: LaneBatch, receipt: LaneReceipt) -> None:
    """Errors of the disk are passed over."""
    try:
        _apply(self, batch, receipt)
    except Exception:  # noqa: BLE001 - that is the fault
        self._doubted = False


_apply = LaneProtocol.apply


def _forgotten(_self: LaneProtocol, start: int, now_ms: int) -> marks.Tally:
    """What was counted beside the offset is not taken up again."""
    return marks.Tally(from_offset=start, since_ms=now_ms)


def _said_apart(self: Counting, now_ms: int) -> Turn | None:
    """An event goes without the offset beside which its counts stand."""
    turn = _say(self, now_ms)
    return None if turn is None else Turn(publishes=turn.publishes)


_say = Counting.say

MUTANTS: tuple[Mutant, ...] = (
    Mutant("offsets outside of the transaction", ((LaneProtocol, "commit", _offsets_outside),)),
    Mutant("an unknown commit is taken for done", ((LaneProtocol, "commit", _unknown_is_done),), 63),
    Mutant("an unknown commit is repeated", ((Lane, "_transact", _repeat),), 81),
    Mutant("store written before the commit", ((LaneProtocol, "commit", _store_first),), 10),
    Mutant("errors of the disk passed over", ((LaneProtocol, "apply", _kept),), 115),
    Mutant("offsets read before fencing",
           ((LaneProtocol, "fence", _fence_late), (SimLane, "fetch_committed", _read_before_fence)), seed=2156),
    Mutant("no fresh producer", ((SimLane, "start_producer", _same_producer),), 19),
    Mutant("lanes open before the rebalance is over", ((Placer, "_wait_settled", _at_once),), 0),
    Mutant("nothing is held before the seek", ((SimLane, "hold", _hold_nothing),), 75),
    Mutant("uncommitted records are read", ((MemoryBroker, "read", _uncommitted),), 15),
    Mutant("offsets pass what is running", ((OffsetWindow, "release", _finished_anywhere),), 0),
    Mutant("positions are not written down", ((marks, "PROGRESS", b"nothing"),
                                                    (transport, "written_down", _anew))),
    Mutant("the store is not brought up to date", ((LaneProtocol, "recover", _no_recovery),)),
    Mutant("recovery begins too late", ((MemoryPendingTable, "recover", _lose_the_start),), 8),
    Mutant("seen events are not brought up to date", ((transport, "recover_seen", _no_events),)),
    Mutant("the table of seen events is not written", ((transport, "apply_seen", _not_applied),)),
    Mutant("no event is written down", ((Duplicates, "note", _unwritten),), 14),
    Mutant("rows in two turns", ((MemoryPendingTable, "due", _rows_of_nobody), (scheduler, "CLAIM_LIMIT", 1)), 0),
    Mutant("fires early",
           ((MemoryPendingTable, "due", _due_early), (pool, "is_due", _not_looked))),
    Mutant("the scheduler sleeps on", ((Scheduler, "changed", _unheard),)),
    Mutant("a claim ends before its turn is applied", ((Session, "release", _let_go),), 3),
    Mutant("a hand-off without its removal", ((Run, "settle", _left_behind),)),
    Mutant("a removal without its hand-off", ((Run, "settle", _not_handed_off),)),
    Mutant("rows are delivered without a mark", ((LaneProtocol, "_mark_rows", _unmarked),), 15),
    *(Mutant(name, (replaced,), seed) for name, seed, replaced in SUSPECTS),
    Mutant("a store is trusted whose last write was rolled back",
           ((MemoryPendingTable, "last_written", property(_not_looked_for)),), 401),
    Mutant("a failure keeps its runner for as long as it waits", ((DeliveryPool, "_call", _sleep_it_off),), 16),
    Mutant("an idle lane does not confirm what it handed off last", ((Lane, "_confirm", _silent),), 1104),
    Mutant("counts are forgotten at an opening", ((LaneProtocol, "counted_from", _forgotten),), 0),
    Mutant("counts stay when they were said", ((Counting, "say", _said_apart),)),
    *(Mutant(*planted) for planted in BEYOND),
    *(Mutant(*planted) for planted in (*RULES, *VERDICTS, *REFERENCES, *THROUGH, *DAMAGE)),
    *(Mutant(*planted) for planted in ORDER),
    *(Mutant(*planted) for planted in CALLS),
    *(Mutant(*planted) for planted in (*COMMANDS, *LETTERS)),
    *(Mutant(*planted) for planted in (*PACE, *WORLD, *MODED, *FLOORS, *DEADLINES)),
    Mutant("no attempt is the last", ((judge, "decide", _for_ever),)),
)  # fmt: skip


def hunt(mutant: Mutant, seeds: Sequence[int], simulate: Callable[..., Any]) -> tuple[int, str] | None:
    """Return the first seed that finds a mutant, with what it says; None when none does."""
    with mutant.planted():
        for seed in (mutant.seed, *seeds):
            result = simulate(seed)
            if result.violation is not None:
                return seed, result.violation
    return None

"""Planted faults of the order within sequences; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from retryapp.core.holding import Holding
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane.refused import RefusedTurns
from retryapp.engine.lane.turn import Turn, settling
from retryapp.engine.partition import sequences
from retryapp.engine.partition.caps import Caps
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.latest import Latest
from retryapp.engine.partition.line import Line
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.partition.scheduler import Scheduler
from retryapp.engine.partition.sequences import Sequences
from simulation.consumer import SimConsumer


def _nobody(_self: GivenUp, _name: bytes) -> bool:
    """A sequence goes on beside a run that was given up."""
    return False


def _of_one_assignment(self: PartitionEngine, *args: Any, **more: Any) -> None:
    """A partition that comes back does not know of its runs that still go on."""
    _make(self, *args, **more | {"given_up": None})


_make = PartitionEngine.__init__


async def _not_learned(_self: Sequences, _table: Any) -> None:
    """Who is head is known to the session that has made him head."""


def _free(_self: Sequences, _name: bytes, _line: Any) -> bool:
    """The successor does not wait for the end of the head's run."""
    return False


def _forgotten(self: Sequences, run: Run, turn: Turn | int | None) -> None:
    """A head that waits is none: its successor begins."""
    _ended(self, run, run.record.next_offset if run.claim is None and isinstance(turn, Turn) else turn)


_ended = Sequences.ended


def _unordered(self: RefusedTurns, turn: Turn) -> bool:
    self._ordered = False
    return _keep(self, turn)


_keep = RefusedTurns.keep


def _each_claimed(_self: Sequences, _key: bytes, _row: Any, _due_at_ms: int = 0) -> bool:
    """Rows are claimed once they are due, whoever is before them."""
    return True


class _Blind:
    """A table that does not say that it has held rows."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return (lambda: {}) if name == "counts" else getattr(self._table, name)


def _blind(self: Scheduler, *args: Any, **more: Any) -> None:
    """Held rows of a handler that keeps no order any more wait for ever."""
    _init(self, *args, **more)
    if self._sequences is None:
        self._pending = _Blind(self._pending)


_init = Scheduler.__init__


def _before_duplicates(self: Latest, record: Any) -> bool:
    """Any record of a key replaces those that wait, also one that turns out to be a duplicate."""
    line = self._lines.get(self.name(record.key) or b"")
    while line is not None and line.waiting:
        run = line.waiting.popleft()
        self._settle(run, self._told(settling(run.record), run.origin, record.offset))
    return _has_row(self, record)


_has_row = Sequences.has_row


def _left(_self: Latest, _identities: Any, _by: int) -> Turn:
    """The outcome of a newer record leaves the row of the older one."""
    return Turn()


async def _not_read(_self: Latest) -> None:
    """Rows are claimed at an opening, whatever is on the main topic."""


def _tried_again(_self: Latest, _run: Run, outcome: Any) -> Any:
    """An older record that fails waits for its next attempt, although a newer one waits for it."""
    return outcome


def _not_stopped(_run: Run, _turn: Turn) -> None:
    """The sequence of a dead record goes on."""


async def _stops_not_learned(self: Sequences, table: Any) -> None:
    """A stop is known to the session that has made it."""
    self._holding = Holding()
    await _load(self, table)
    self._holding = self._context.handler.holding


_load = Sequences.load


def _never_full(_self: Caps, _line: Any) -> bool:
    """As many records of a sequence wait as there are."""
    return False


def _newest_first(self: Sequences, run: Run) -> None:
    """Of the records that wait in the window behind a head, the newest begins first."""
    name = run.sequence = self.name(run.record.key)
    if name is None:
        self._start(run)
        return
    self._lines.setdefault(name, Line()).waiting.appendleft(run)
    self.advance(name)


def _shared(self: Scheduler) -> int:
    """Rows are claimed while there is room in the window, which records have that wait for them."""
    session: Any = self._held.__self__  # type: ignore[attr-defined]
    return max(0, _room_of(self) - len(session.window))


_room_of: Callable[[Scheduler], int] = Scheduler._free.fget  # type: ignore[attr-defined]


def _behind_all(self: Sequences, identity: bytes, value: bytes, key: bytes | None) -> None:
    """A replay waits behind all that wait of its sequence."""
    _came_back(self, identity, value, key)
    if (line := self._lines.get(self.name(key) or b"")) is not None and identity in line.rows:
        line.rows.remove(identity)
        line.rows.append(identity)


def _before_all(self: Sequences, identity: bytes, value: bytes, key: bytes | None) -> None:
    """A replay goes before all that wait of its sequence, also before earlier ones."""
    _came_back(self, identity, value, key)
    if (line := self._lines.get(self.name(key) or b"")) is not None and identity in line.rows:
        line.rows.remove(identity)
        line.rows.insert(int(line.running and not line.first and bool(line.rows)), identity)


_came_back = Sequences.came_back


def _stays_first(self: Sequences, run: Run, turn: Turn | int | None) -> bool:
    """A head that waits again is before what was replayed while it ran."""
    before_row = _ended(self, run, turn)
    line = self._lines.get(run.sequence or b"")
    if line is not None and run.place in line.rows and not line.running:
        line.rows.remove(run.place)
        line.rows.appendleft(run.place)
    return before_row


def _paused(self: SimConsumer, tp: Any) -> None:
    """What waits pauses its partition with the flag that a hold has set."""
    self._flowing.discard(tp)


def _resumed(self: SimConsumer, tp: Any) -> None:
    self._flowing.add(tp)
    self._wake.set()


ORDER: Final = (
    ("the newest of a sequence begins first", ((Sequences, "arrive", _newest_first),), 17),
    ("window shared with claims", ((Scheduler, "_free", property(_shared)),), 4_000_000),
    ("pause flag used", ((SimConsumer, "on_buffer_full", _paused), (SimConsumer, "on_buffer_drop", _resumed)), 10),
    ("a sequence goes on beside an orphan", ((GivenUp, "__contains__", _nobody),), 4),
    ("heads are not found at an opening", ((Sequences, "load", _not_learned),), 2),
    ("a successor begins beside its head", ((Sequences, "_is_busy", _free),), 2),
    ("a head that waits is passed", ((Sequences, "ended", _forgotten),), 2),
    ("runs of a former assignment are forgotten", ((PartitionEngine, "__init__", _of_one_assignment),), 1467),
    ("turns of a sequence overtake a refused one", ((RefusedTurns, "keep", _unordered),), 64),
    ("rows are claimed before those ahead of them", ((Sequences, "claim", _each_claimed),), 2),
    ("supersede before deduplicate", ((Latest, "has_row", _before_duplicates),), 346),
    ("an older row is claimed although a newer one runs", ((Latest, "claim", _each_claimed),), 2),
    ("a row that was replaced stays", ((Latest, "_removal", _left),), 2),
    ("rows begin before newer records are read", ((Latest, "caught_up", _not_read),), 196),
    ("an older record is tried again although a newer one waits", ((Latest, "judged", _tried_again),), 2),
    ("a stopped row is forgotten", ((Sequences, "load", _stops_not_learned),), 4_000_004),
    ("more wait than may", ((Caps, "reached", _never_full),), 4_000_011),
    ("a dead record stops nothing", ((sequences, "stop", _not_stopped),), 4_000_000),
    ("a replay waits behind all of its sequence", ((Sequences, "came_back", _behind_all),), 4_000_018),
    ("a replay goes before earlier ones of its sequence", ((Sequences, "came_back", _before_all),), 1_000_605),
    ("a head that waits stays before what is replayed", ((Sequences, "ended", _stays_first),), 1_000_209),
    ("held rows wait for ever once no order is kept", ((Scheduler, "__init__", _blind),), 5566),
)

"""Planted faults of rates and circuits; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from typing import Any, Final

from retryapp.core.circuit import Circuit
from retryapp.core.rates import LeakyBucket
from retryapp.core.row_keys import queue_in
from retryapp.core.rows import PendingRow
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.circuits import KeptCircuits
from retryapp.testing import MemoryPendingTable
from simulation.plan import SERVED

SAVED: Final = 10


def _full(self: LeakyBucket, now_ms: float) -> None:
    """A bucket begins with what would have leaked before."""
    self.next_ms = now_ms - SAVED * self.every_ms


def _saved_up(self: LeakyBucket, _now_ms: float) -> float:
    return self.next_ms


def _waited_for(self: Circuit, place: Hashable, now_ms: float) -> None:
    """A probe keeps its place until it ends."""
    _begin(self, place, now_ms)
    if place in self._slots:
        self._slots[place] = inf


_begin = Circuit.begin


def _never(*_given: Any, **_named: Any) -> None:
    """Nothing happens."""


def _one_queue(self: MemoryPendingTable, *given: Any, most: Mapping[int, int] = {}, **named: Any) -> Any:
    """Rows that are due after one of a service that is out wait with it."""
    rows, next_due_ms = _due(self, *given, **named)
    shut = next((at for at, (key, _) in enumerate(rows) if most.get(queue_in(key)) == 0), None)
    return (rows, next_due_ms) if shut is None else (rows[:shut], None)


_due = MemoryPendingTable.due


def _in_none(self: PendingRow, _name: str) -> PendingRow:
    """A row does not say which service it waits for."""
    return self


def _unwritten(self: KeptCircuits, *_what: Any) -> Turn:
    """Changes of circuits are told, and not written down."""
    return self.turn()


PACE: Final[tuple[tuple[Any, ...], ...]] = (
    ("a bucket is full at opening", ((LeakyBucket, "empty", _full), (LeakyBucket, "_from_ms", _saved_up)), 74),
    ("attempts are spent while the circuit is open", ((Circuit, "free", lambda *_given: False),), 27),
    ("what the circuit held is not let go", ((Pace, "_release", _never),), 104),
    ("a probe that hangs is waited for", ((Circuit, "begin", _waited_for),), 144),
    ("probes that go well end no outage", ((Circuit, "_judge_probes", _never),), 27),
    ("rows wait for the services of others", ((MemoryPendingTable, "due", _one_queue),), SERVED + 13),
    ("a row forgets its service", ((PendingRow, "in_circuit", _in_none),), SERVED + 4),
    (
        "rows begin although their service is out",
        ((Pace, "limits", lambda *_given: {}), (Pace, "sends_back", lambda *_given: False)),
        SERVED + 3,
    ),
    ("an opening begins with closed circuits", ((Circuit, "take_up", _never),), SERVED + 7),
    ("the state of a circuit is not written down", ((KeptCircuits, "note", _unwritten),), SERVED),
)

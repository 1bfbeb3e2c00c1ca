"""Planted faults of rates and circuits; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any, Final

from retryapp.core.circuit import Circuit
from retryapp.core.rates import LeakyBucket
from retryapp.engine.delivery.pace import Pace

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


PACE: Final = (
    ("a bucket is full at opening", ((LeakyBucket, "empty", _full), (LeakyBucket, "_from_ms", _saved_up))),
    ("attempts are spent while the circuit is open", ((Circuit, "free", lambda *_given: False),)),
    ("what the circuit held is not let go", ((Pace, "_release", _never),)),
    ("a probe that hangs is waited for", ((Circuit, "begin", _waited_for),)),
    ("probes that go well end no outage", ((Circuit, "_judge_probes", _never),)),
)

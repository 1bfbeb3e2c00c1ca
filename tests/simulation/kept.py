"""What must hold of circuits over restarts (I33): what is told of one is written, and the next owner goes on with it.

One that was not closed then is not closed now, so that no attempt is spent (I18); one that was let close is closed.
Nothing is asked of what a process has read or written itself: its own memory of a circuit goes on.
"""

from __future__ import annotations

from collections import Counter

from retryapp.core.circuit import CircuitState, KeptCircuit
from retryapp.core.jobs import read_steering
from retryapp.core.marks import PROGRESS, read_progress
from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.services import circuits_of
from simulation.story import Violation
from simulation.worker import SimWorker


class Kept:
    """Judges the openings of one handler; `changelog` is that of its rows. Without commands nothing is remembered."""

    def __init__(self, main: str, changelog: str, *, commanded: bool) -> None:
        self._main = main
        self._changelog = changelog
        self._commanded = commanded
        self._read: dict[tuple[str, int, str], KeptCircuit] = {}
        """By worker, partition and name: what was written down at its last opening."""
        self.told: set[tuple[int, str]] = set()
        """Partitions and names of circuits of which a change is visible."""
        self.reached: Counter[str] = Counter()

    def opened(self, worker: SimWorker, broker: Broker, number: int) -> None:
        """Judge an opening, before a record begins."""
        records = broker.visible(TopicPartition(self._changelog, number))
        last = next((record.value or b"" for record in reversed(records) if record.key == PROGRESS), b"")
        now = circuits_of(worker, self._main, number)
        found = read_steering(read_progress(last).steering).circuits
        gone = broker.taken_back[self._changelog] or self._changelog in broker.made_again
        for name in sorted(name for at, name in self.told if at == number):
            if name not in found and self._commanded and not gone:
                raise Violation(f"I33 {number}: a change of circuit {name!r} is told, and not written")
        for name, kept in found.items():
            place = worker.process.name, number, name
            before, self._read[place] = self._read.get(place), kept
            if kept == before or kept.by == worker.process.name:
                continue
            state = now[name].state
            if state is not CircuitState.FORCED_OPEN and kept.closed != (state is CircuitState.CLOSED):
                raise Violation(f"I33 {number}: circuit {name!r} is {state}, and was {kept.state} at {kept.by}")
            self.reached["a circuit began half-open after a restart"] += state is CircuitState.HALF_OPEN
            self.reached["a circuit was let close by another owner"] += kept.closed

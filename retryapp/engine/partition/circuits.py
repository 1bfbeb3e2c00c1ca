"""Writes down the state of a partition's circuits, and tells of it: an event on the events topic, and an observation.

Each change of state is written with what the partition remembers (`core.jobs.Steering`), so that an opening by another
process, which knows nothing of the outage, begins half-open, and deadlines go on not to count it. A circuit that never
opens is not written. Who has had the partition before knows more of a circuit than is written (its break, its calls),
so it goes on with that, unless another owner has written something since.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from retryapp.core.circuit import MOST_SPELLS, KeptCircuit, Transition
from retryapp.core.jobs import Steering
from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.lifecycle import CircuitChanged
from retryapp.core.text import cut_text
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.turn import Turn, to_event
from retryapp.ports import Event, Observation, TopicPartition

MAX_CAUSE_BYTES: Final = 200
"""Of a cause that is written down: each transaction has it."""


class KeptCircuits:
    """What is written down of the circuits of a partition, in one session."""

    def __init__(self, context: DeliveryContext, main: TopicPartition, steering: Steering) -> None:
        """Have the handler's circuits go on with what another process has written down; those that are gone go."""
        self._context = context
        self._main: Final = main
        self._steering = steering
        self.lacking = False
        """Whether a change has happened that is not written down: the lane closed before it was."""
        gates = context.pace.gates
        steering.circuits = {name: kept for name, kept in steering.circuits.items() if name in gates}
        for name, gate in gates.items():
            circuit, kept = gate.circuit, steering.circuits.get(name)
            if kept is not None and kept.by != context.life and kept != circuit.read:
                circuit.read = circuit.kept = kept
                away_ms = context.clock.wall_ms() - kept.since_ms  # below 0: our clock is behind
                gate.change = circuit.take_up(kept, context.clock.monotonic_s() * 1_000, away_ms)
            elif circuit.kept is not None and circuit.kept != kept:
                steering.circuits[name], self.lacking = circuit.kept, True

    def note(self, change: Transition, name: str) -> Turn:
        """Note a change of a circuit; return the turn that writes it down."""
        clock, circuit, before = self._context.clock, self._context.pace.gates[name].circuit, self._steering.circuits
        now_ms = clock.monotonic_s() * 1_000
        ahead_ms = clock.wall_ms() - now_ms
        spells = before[name].spells if name in before else ()
        if change.spell is not None:
            begin_ms, end_ms = change.spell
            spells = (*spells, (int(begin_ms + ahead_ms), int(end_ms + ahead_ms)))[-MOST_SPELLS:]
        circuit.kept = before[name] = KeptCircuit(
            state=circuit.state,
            by=self._context.life,
            cause="" if circuit.closed else cut_text(circuit.cause, MAX_CAUSE_BYTES),
            since_ms=0 if circuit.closed else int(circuit.spells(now_ms)[-1][0] + ahead_ms),
            used_ms=int(circuit.used_ms(now_ms)),
            opened=circuit.opened,
            spells=spells,
        )
        return self.turn()

    def turn(self) -> Turn:
        """Return the turn that writes down what is noted."""
        return Turn(source=self._main, next_offset=0, steering=self._steering.written)


def tell(
    submit: Callable[[Turn], None],
    context: DeliveryContext,
    partition: int,
    kept: KeptCircuits | None,
    change: Transition,
    circuit: str,
) -> None:
    """Have the lane write a change down, and publish it, in one turn; a lane that closes meanwhile drops both."""
    handler = context.handler
    event = CircuitChanged(
        group=handler.group,
        handler=handler.name,
        main=handler.main,
        partition=partition,
        from_state=change.before,
        to_state=change.after,
        cause=change.cause,
        circuit=circuit,
        at_ms=context.clock.wall_ms(),
    )
    seen = Observation(
        event=Event.CIRCUIT,
        handler=handler.main,
        topic=handler.main,
        partition=partition,
        state=change.after,
        circuit=circuit,
        message=change.cause or None,
    )
    sent = to_event(event, topology=handler.topology, partition=partition)
    written = Turn(patient=True) if kept is None else kept.note(change, circuit)
    with suppress(LaneClosedError):
        submit(replace(written, publishes=(sent,), observations=(seen,)))

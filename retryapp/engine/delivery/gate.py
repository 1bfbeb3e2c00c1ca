"""A circuit, and what it holds back; see `engine.delivery.pace`."""

from __future__ import annotations

import asyncio
from typing import Protocol

from retryapp.core.circuit import Circuit, CircuitState, Transition
from retryapp.core.rates import LeakyBucket
from retryapp.core.record import Record
from retryapp.engine.handler.places import Places


class Due(Protocol):
    """What is asked of the claim of a due row (`engine.delivery.run`)."""

    @property
    def circuit(self) -> str:
        """Name of the circuit that has counted its last failure; empty: none."""

    @property
    def due_at_ms(self) -> int:
        """0 of a held row."""


class Paced(Protocol):
    """What is asked of a run (`engine.delivery.run`)."""

    @property
    def record(self) -> Record:
        """Its record."""

    @property
    def begun(self) -> bool:
        """Whether the handler was called."""

    @property
    def claim(self) -> Due | None:
        """The due row; None for a first delivery."""

    @property
    def circuit(self) -> str:
        """Name of the circuit that has counted its last failure; empty: none."""

    @property
    def on_end(self) -> object | None:
        """Who waits for its end: its mark."""


class Gate:
    """A circuit, and the runs that it has let begin."""

    def __init__(self, name: str, circuit: Circuit, shares: int, now_ms: float, places: Places | None) -> None:
        self.name = name
        self.circuit = circuit
        self.places = places
        self.offered = 0
        """Of the places, in the present look at the table."""
        rate = circuit.breaker.rate_limit
        self.bucket = None if rate is None else LeakyBucket(rate.share_ms(shares), now_ms)
        self.admitted: set[Paced] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.change: Transition | None = None
        """Before a session."""

    @property
    def forced(self) -> bool:
        """Whether somebody has forced it open."""
        return self.circuit.state is CircuitState.FORCED_OPEN

    def admit(self, run: Paced, now_ms: float) -> None:
        """Let a run begin."""
        self.circuit.begin(run.record.offset, now_ms)
        self.admitted.add(run)

    def stop(self) -> None:
        """Forget when to look again."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

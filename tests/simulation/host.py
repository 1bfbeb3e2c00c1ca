"""What the parts of a simulated worker know of each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Protocol

from retryapp.engine.ownership import Ownership
from retryapp.ports import Clock, Committed, TopicPartition
from simulation.broker import Broker
from simulation.loop import Process
from simulation.network import Wire


class Positions(Protocol):
    """What lanes ask of the consumer."""

    async def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Stop fetching and make everything fetched so far stale."""
        ...

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set positions and let records flow."""
        ...

    def heard(self, asked_s: float) -> None:
        """Take note that the coordinator took this worker for a member when it was asked."""
        ...


class Host(Protocol):
    """A worker process, as its client sees it."""

    process: Process
    broker: Broker
    wire: Wire
    random: Random
    ownership: Ownership
    topics: Sequence[str]
    early: dict[str, Mapping[TopicPartition, Committed]]
    """For a planted fault: offsets that were read too early, by lane."""

    @property
    def client(self) -> Positions:
        """Its consumer."""
        ...

    @property
    def clock(self) -> Clock:
        """Its clock."""
        ...

"""A main topic that gets one partition more while workers run (I29).

Whoever has joined the group since says that our topics lack it, and delivers nothing of it before they have grown, too.
Then its workers open it without a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulation.broker import Broker
from simulation.story import Violation
from simulation.worker import SimWorker


def grow(
    broker: Broker, slots: Sequence[SimWorker | None], guard: Callable[[Callable[[], None]], None]
) -> Callable[[], None]:
    """Have the main topics grow; return what has ours grow, too."""
    broker.grow()

    def complete() -> None:
        guard(lambda: _check_told(broker, slots))
        broker.complete = broker.partitions

    return complete


def _check_told(broker: Broker, slots: Sequence[SimWorker | None]) -> None:
    for worker in slots:
        if worker is not None and worker.alive and worker.consumer.counted > max(broker.complete, worker.told_lacking):
            raise Violation(f"I29: {worker.process.name} has joined, and says nothing of the new partition")

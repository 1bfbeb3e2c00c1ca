"""What the judge of a history asks of the lanes of simulated workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from retryapp.engine.lane.lane import LaneState
from retryapp.ports import PendingTable
from retryapp.testing.tables import MemorySeenTable
from simulation.lanes import SimLane
from simulation.story import Opening
from simulation.worker import SimWorker


def opening_of(worker: SimWorker, main: str, number: int) -> Opening | None:
    """Return what the lane of a partition knew when it opened; None where the worker has none."""
    placed = worker.ownership.placed.get((main, number))
    if placed is None or not isinstance(lane := placed.transport, SimLane):
        return None
    return Opening(worker.process.name, lane.fenced_ms, lane.control_end)


def is_owner(worker: SimWorker, main: str, number: int) -> bool:
    """Tell whether the producer of a partition's lane is not fenced."""
    placed = worker.ownership.placed.get((main, number))
    if placed is None or not isinstance(lane := placed.transport, SimLane):
        return False
    return not worker.broker.is_fenced(lane.place.name, lane.epoch)


def session_of(worker: SimWorker, main: str, number: int) -> tuple[object, int] | None:
    """Return the session of a partition at a worker; None between two sessions, and without a lane."""
    placed = worker.ownership.placed.get((main, number))
    session = None if placed is None else placed.engine.session
    return None if placed is None or session is None else (placed.engine, session.number)


def drains(worker: SimWorker, main: str, number: int) -> bool:
    """Tell whether a partition of a worker takes nothing new: what runs is its last."""
    placed = worker.ownership.placed.get((main, number))
    return placed is None or placed.engine._draining


def taken_in(worker: SimWorker, main: str, number: int) -> int:
    """Return how many records of a partition a worker has taken in and not settled."""
    placed = worker.ownership.placed.get((main, number))
    return 0 if placed is None or placed.engine.session is None else len(placed.engine.session.window)


def claimed(worker: SimWorker, main: str, number: int) -> int:
    """Return how many rows of a partition a worker delivers, or has delivered without a durable outcome."""
    placed = worker.ownership.placed.get((main, number))
    return 0 if placed is None or placed.engine.session is None else len(placed.engine.session.scheduler.claimed)


def opened_store(worker: SimWorker, main: str, number: int) -> PendingTable | None:
    """Return the table of a lane that has opened; None where its next owner has fenced it meanwhile.

    A process that was stopped just before its lane opened goes on with what was true then. It changes nothing:
    its first transaction is refused. That it begins nothing is I10.
    """
    placed = worker.ownership.placed.get((main, number))
    if placed is None or not isinstance(lane := placed.transport, SimLane):
        return None
    return None if worker.broker.is_fenced(lane.place.name, lane.epoch) else lane.pending


def seen_stores(
    workers: Iterable[SimWorker | None], main: str, generation: int
) -> Iterator[tuple[int, MemorySeenTable]]:
    """Yield the tables of seen events of a handler's lanes that are open in a generation, with their partitions.

    One of an earlier generation belongs to a worker that has not heard yet that it was replaced.
    """
    for worker in workers:
        if worker is None or not worker.alive or worker.process.stopped:
            continue
        for (topic, number), placed in sorted(worker.ownership.placed.items()):
            store = placed.transport.seen
            current = placed.lane.state is LaneState.OPEN and placed.transport.generation == generation
            if topic == main and current and isinstance(store, MemorySeenTable):
                yield number, store

"""One delivery of one record, on a pool of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retryapp.core.record import Record
from retryapp.engine.delivery.pool import CANCEL_WAIT_S, DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext, Outcome, Run, RunAbortedError
from retryapp.engine.lane.turn import Turn
from retryapp.ports import TopicPartition


class Owner:
    """Keeps the outcome of a run, and counts its ends."""

    def __init__(self) -> None:
        self.ends = 0
        self.outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

    def alive(self, _run: Run) -> bool:
        """Count every run."""
        return True

    def begun(self, _run: Run) -> None:
        """Do nothing."""

    def ended(self, _run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        """Take the outcome."""
        self.ends += 1
        if self.outcome.done():
            return
        if fault is not None:
            self.outcome.set_exception(fault)
        else:
            self.outcome.set_result(outcome)


async def deliver_once(
    context: DeliveryContext,
    record: Record,
    *,
    on_run: Callable[[Run], None] | None = None,
    stop_wait_s: float = CANCEL_WAIT_S,
) -> Turn:
    """Return the turn that settles a record; `on_run` gets the run before it begins, to abort it."""
    owner, pool = Owner(), DeliveryPool(1, "deliver-once")
    run = Run(owner, context, record)
    if on_run is not None:
        on_run(run)
    pool.start()
    pool.submit(run)
    try:
        outcome = await owner.outcome
    finally:
        await pool.stop(stop_wait_s)
    if outcome is None:
        raise RunAbortedError
    if isinstance(outcome, int):
        return Turn(source=TopicPartition(record.topic, record.partition), next_offset=outcome)
    return outcome

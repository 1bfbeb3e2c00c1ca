"""One delivery of one record, on a pool of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from retryapp.core.record import Record
from retryapp.engine.pool import CANCEL_WAIT_S, DeliveryPool
from retryapp.engine.run import DeliveryContext, Outcome, Run, RunAbortedError
from retryapp.engine.turn import Turn
from retryapp.ports import TopicPartition


class _Owner:
    """Keeps what comes of the run."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

    def alive(self, _run: Run) -> bool:
        return True

    def begun(self, _run: Run) -> None:
        pass

    def ended(self, _run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
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
    """Deliver a record once, as a worker would.

    Args:
        context: the handler and what its deliveries share.
        record: of the main or the redelivery topic.
        on_run: gets the run before it begins, to abort it.
        stop_wait_s: how long the handler may go on when this is cancelled.

    Returns:
        The turn that settles it.

    Raises:
        RunAbortedError: it was given up.
    """
    owner, pool = _Owner(), DeliveryPool(1, "deliver-once")
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

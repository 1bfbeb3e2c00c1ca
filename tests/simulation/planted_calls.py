"""Planted faults of how a handler is called; see `simulation.mutants`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from retryapp.engine.delivery import batches, deliver, pool
from retryapp.engine.delivery.batches import BatchPool, BatchRun
from retryapp.engine.delivery.delivery import open_delivery
from retryapp.engine.delivery.judge import hot_wait_s
from retryapp.engine.delivery.pool import DeliveryPool, settle_cancellation
from retryapp.engine.delivery.run import Run


def _same_box(self: Run) -> None:
    """The box of a failed try stays for the next one."""
    self.hot_attempt += 1
    self.delivery = None


def _filled(run: Run) -> Any:
    former = run.outbox
    delivery = open_delivery(run)
    if former is not None and run.outbox is not None and former._wishes:
        run.outbox._wishes = list(former._wishes)
    return delivery


async def _deaf(_self: DeliveryPool, run: Run, error: BaseException) -> bool:
    """A wait for another try does not end with the session."""
    wait_s = None if run.aborted or run.overdue or run.given_up else hot_wait_s(run, error)
    if wait_s is None:
        return False
    waiting = asyncio.get_running_loop().create_task(asyncio.sleep(wait_s))  # raises first where none runs any more
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)
    return True


async def _blamed(self: BatchPool, batch: BatchRun, runs: list[Run]) -> bool:
    """What a handler marks is said of the record before it."""
    boxes = [run.outbox for run in runs if run.outbox is not None]
    marks = [box.failed for box in boxes]
    for box, mark in zip(boxes, marks[1:] + marks[:1], strict=True):
        box.failed = mark
    return await _close_all(self, batch, runs)


_close_all = BatchPool._close_all


async def _never_over(_self: BatchPool, batch: BatchRun) -> bool:
    """The halves of a batch are tried whatever has ended it."""
    if batch.task is not None and batch.task.cancelling():
        await settle_cancellation(batch.task)
    return batch.given_up


CALLS: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("what a failed try has published is kept",
     ((Run, "try_again", _same_box), (pool, "open_delivery", _filled)), 4),
    ("another try begins after the end of the session", ((DeliveryPool, "_tries_again", _deaf),), 24),
    ("a mark is that of another record", ((BatchPool, "_close_all", _blamed),), 9),
    ("neighbours fail with a record that raises", ((batches, "ALIKE", 1),), 9),
    ("what took too long runs with others again", ((deliver, "ALONE", 0),), 87),
    ("halves are tried after the end of the session", ((BatchPool, "_is_over", _never_over),), 154),
    ("a delivery has one try", ((pool, "hot_wait_s", lambda _run, _error: None),), 16),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

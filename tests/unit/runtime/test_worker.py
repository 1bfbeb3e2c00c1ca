"""The worker process."""

from __future__ import annotations

import gc

import pytest
from faust.worker import Worker

from retryapp.runtime.worker import RetryWorker


async def test_what_start_up_has_made_is_taken_out_of_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over all modules takes as long as a late retry may, every two seconds under load."""
    told: list[str] = []

    async def finished(_self: Worker) -> None:
        told.append("finished")

    monkeypatch.setattr(Worker, "on_startup_finished", finished)
    tracked = len(gc.get_objects())
    try:
        await RetryWorker.on_startup_finished(RetryWorker.__new__(RetryWorker))
        assert told == ["finished"]
        assert len(gc.get_objects()) < tracked / 10
    finally:
        gc.unfreeze()

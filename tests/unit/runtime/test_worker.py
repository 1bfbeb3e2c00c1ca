"""The worker process."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path

import faust
import pytest
from faust.worker import Worker

from retryapp.core.errors import RetryAppError
from retryapp.runtime.worker import RetryWorker, user_line


@pytest.mark.parametrize(
    ("before", "after"), [((700, 10, 10), (3_000, 100, 20)), ((900, 10, 10), (900, 10, 10))], ids=["python", "own"]
)
async def test_the_garbage_collector_is_spared_rounds_that_find_nothing(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    """A walk over all modules takes as long as a late retry may; a program's own thresholds stay."""
    told: list[str] = []

    async def finished(_self: Worker) -> None:
        told.append("finished")

    monkeypatch.setattr(Worker, "on_startup_finished", finished)
    tracked, thresholds = len(gc.get_objects()), gc.get_threshold()
    try:
        gc.set_threshold(*before)
        worker = RetryWorker.__new__(RetryWorker)
        worker.app = faust.App("plain")
        await RetryWorker.on_startup_finished(worker)
        assert told == ["finished"]
        assert len(gc.get_objects()) < tracked / 10
        assert gc.get_threshold() == after
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import json\n\n\ndef f():\n    json.loads('')\n\n\nf()\n", 5),
        ("from retryapp import RetryPolicy\n\nRetryPolicy('5parsecs')\n", 3),
        ("\ndef f(:\n", 2),
    ],
)
def test_the_users_own_line_is_named(tmp_path: Path, source: str, line: int) -> None:
    """Not that of the library in which the error was raised."""
    path = tmp_path / "billing.py"
    path.write_text(source)
    with pytest.raises((ValueError, SyntaxError, RetryAppError)) as caught:
        runpy.run_path(str(path))
    assert user_line(caught.value) == f"{path}, line {line}"

"""A worker that is not there, and its pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from functional.web.server import Site, opened
from functional.web.worker import FakeWorker, busy_worker

from retryapp.web import lists, peers


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search end its page early, and no worker seem silent, because the machine is busy."""
    monkeypatch.setattr(lists, "READ_S", 30.0)
    monkeypatch.setattr(peers, "DEADLINE_S", 30.0)


@pytest.fixture
def worker() -> FakeWorker:
    return busy_worker()


@pytest.fixture
async def site(worker: FakeWorker) -> AsyncIterator[Site]:
    async with opened(worker) as made:
        yield made

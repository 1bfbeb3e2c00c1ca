"""Records and stations for tests of single steps; lanes, and handlers that outlast their test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from doubles import MakeRig, Rig, Stubborn, running_clock, settle

from retryapp.engine.lane.lane import LaneLimits
from retryapp.engine.partition.commands import Commands
from retryapp.testing import VirtualClock


@pytest.fixture
async def clock() -> VirtualClock:
    """A clock that also drives the timers of the test's loop."""
    return running_clock()


@pytest.fixture
def slow_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each session take long to read its commands."""
    run = Commands.run

    async def slow(self: Commands) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        await run(self)

    monkeypatch.setattr(Commands, "run", slow)


@pytest.fixture
async def make_rig(clock: VirtualClock) -> AsyncIterator[MakeRig]:
    """Make a rig; its lane is ended with the test."""
    rigs: list[Rig] = []

    def make(**limits: object) -> Rig:
        rigs.append(Rig(clock, LaneLimits(**limits)))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        if rig.task is not None:
            rig.task.cancel()
            await asyncio.gather(rig.task, return_exceptions=True)


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig().start()


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    handler = Stubborn()
    yield handler
    handler.over.set()
    await settle()

"""Records and stations for tests of single steps; lanes, and handlers that outlast their test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from doubles import MakeRecord, MakeRig, MakeStation, Rig, Stubborn

from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Headers, Record
from retryapp.core.topology import HandlerTopology
from retryapp.engine.handler import Handler, HandlerFunction
from retryapp.engine.lane import LaneLimits
from retryapp.engine.run import Station
from retryapp.testing import ScriptedRandom, VirtualClock


@pytest.fixture
async def clock() -> VirtualClock:
    """A clock that also drives the timers of the test's loop."""
    made = VirtualClock()
    made.drive(asyncio.get_running_loop())
    return made


@pytest.fixture
def make_station(clock: VirtualClock) -> MakeStation:
    """Make a station: function, schedule or policy, numbers for the jitter, fields of the handler."""

    def make(
        function: HandlerFunction,
        policy: RetryPolicy | str = "1s 10s",
        *,
        rng: float = 0.5,
        max_bytes: int = 1_048_576,
        **options: Any,
    ) -> Station:
        chosen = RetryPolicy(policy) if isinstance(policy, str) else policy
        topology = HandlerTopology("app", "orders", delays_ms=chosen.schedule.nominal_delays_ms)
        return Station(
            handler=Handler(function=function, topology=topology, policy=chosen, **options),
            clock=clock,
            random=ScriptedRandom(rng),
            topic_id="kq8G0bTz",
            max_bytes=max_bytes,
        )

    return make


@pytest.fixture
def make_record() -> MakeRecord:
    """Make a record of the main topic."""

    def make(value: bytes | None = b"v", offset: int = 42, headers: Headers = (), key: bytes | None = b"k") -> Record:
        return Record("orders", 0, offset, 1_600_000_000_000, key, value, headers)

    return make


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
    """A lane that is open."""
    return await make_rig().start()


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    """A stubborn handler that ends with the test."""
    handler = Stubborn()
    yield handler
    handler.over.set()

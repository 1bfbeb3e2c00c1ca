"""Records and stations for tests of single steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Headers, Record
from retryapp.core.topology import HandlerTopology
from retryapp.engine.handler import Handler, HandlerFunction
from retryapp.engine.run import Station
from retryapp.testing import ScriptedRandom, VirtualClock

MakeStation = Callable[..., Station]
MakeRecord = Callable[..., Record]


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

"""What a worker tells of its partitions to those who look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from retryapp.engine.lane import LaneState
from retryapp.runtime.app import Runtime
from retryapp.runtime.view import RuntimeView


async def test_a_partition_tells_what_its_engine_does(runtime: Runtime) -> None:
    """Records in flight, and how long finished ones have waited for the oldest of them."""
    runtime.served["orders"].partitions = 1
    placed: Any = SimpleNamespace(
        engine=SimpleNamespace(in_flight=7, release_lag_ms=3_000, sources=()),
        lane=SimpleNamespace(state=LaneState.OPEN, session=2, last_error=None),
        transport=SimpleNamespace(pending=None, dead=None),
    )
    runtime.placed["orders", 0] = placed
    (info,) = RuntimeView(runtime).partitions("orders")
    assert (info.state, info.session, info.in_flight, info.release_lag_ms) == ("open", 2, 7, 3_000)

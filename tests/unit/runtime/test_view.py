"""What a worker tells of its partitions to those who look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.engine.lane.lane import LaneState
from retryapp.runtime.app import Runtime
from retryapp.runtime.view import RuntimeView


async def test_what_a_table_has_yet_to_read_is_told_while_it_counts(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pending table's before the lane opens, the dead letters' behind the open lane; else an old number."""
    runtime.served["orders"].partitions = 1
    topology = runtime.served["orders"].handler.topology
    behind = {(topology.pending_changelog, 0): 7, (topology.dlq, 0): 3}
    monkeypatch.setattr(runtime, "_reader", SimpleNamespace(behind=behind.__getitem__))
    lane = SimpleNamespace(state=LaneState.OPENING, session=0, last_error=None)
    placed: Any = SimpleNamespace(
        engine=SimpleNamespace(in_flight=0, release_lag_ms=0, looked_ms=5, sources=()),
        lane=lane,
        transport=SimpleNamespace(pending=None, dead=None),
    )
    runtime.placed["orders", 0] = placed
    view = RuntimeView(runtime)
    seen = []
    for state in (LaneState.OPENING, LaneState.OPEN, LaneState.IDLE):
        lane.state = state
        (info,) = view.partitions("orders")
        seen.append((info.pending_behind, info.dead_behind, info.looked_ms))
    assert seen == [(7, 0, None), (0, 3, 5), (0, 0, None)]

"""Until when a worker may believe that its partitions are its own."""

from __future__ import annotations

from typing import Any

import pytest
from faust.types import TP

from retryapp.runtime.consumer import RetryConsumer

MAIN = TP("orders", 0)


async def test_membership_lapses_when_the_coordinator_is_silent_for_a_session(
    consumer: RetryConsumer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from when it was asked, and only a yes counts; each assignment begins with one."""
    now_s, session_s = [100.0], consumer.app.conf.broker_session_timeout

    async def nothing(*_: Any, **__: Any) -> None:
        now_s[0] += 1.0

    for module in ("consumer", "consumer_thread"):
        monkeypatch.setattr(f"retryapp.runtime.{module}.counted_s", lambda: now_s[0])
    monkeypatch.setattr("faust.transport.consumer.Consumer.on_partitions_assigned", nothing)
    monkeypatch.setattr(consumer.app.assignor, "assigned_actives", set)
    assert consumer.lapsed()
    for generation in (3, 4):
        await consumer.on_partitions_assigned({MAIN}, generation)
    assert not consumer.lapsed()
    now_s[0] += session_s
    assert consumer.lapsed(), "the second assignment was a second ago"
    assert await client._do_heartbeat()
    assert not consumer.lapsed()
    now_s[0] += session_s
    assert not consumer.lapsed()
    client.member = False
    assert not await client._do_heartbeat()
    now_s[0] += 0.1
    assert consumer.lapsed()
    consumer.heard(now_s[0] - session_s)
    assert not consumer.lapsed()

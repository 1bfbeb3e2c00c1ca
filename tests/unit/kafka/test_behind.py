"""The wait for what is left on the old partitions of a main topic that has grown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, behind
from retryapp.kafka.behind import Behind, wait_for_old

ORDERS = HandlerTopology(group="billing", main="orders", delays_ms=(60_000,))


@pytest.mark.parametrize(
    ("look_s", "wait_s", "began_s"),
    [
        (0.0, 3.0, [0, 1, 2, 3]),
        (0.0, 2.5, [0, 1, 2, 2.5]),
        (8.0, 30.0, [0, 16, 30]),
        (8.0, 5.0, [0]),
        (8.0, 0.0, [0]),
    ],
)
def test_the_wait_ends_in_time_however_long_a_look_takes(
    monkeypatch: pytest.MonkeyPatch, look_s: float, wait_s: float, began_s: list[float]
) -> None:
    """A look reads the whole changelog; no more than half of the time goes into that."""
    now_s, began, told = 0.0, list[float](), list[Any]()

    def pass_time(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def left(*_: Any) -> list[Behind]:
        began.append(now_s)
        pass_time(look_s)
        return [Behind("orders", 7, 1)]

    monkeypatch.setattr(behind, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(behind, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=pass_time)))
    monkeypatch.setattr(behind, "Positions", lambda _connection: SimpleNamespace(ends=lambda _old: {}))
    monkeypatch.setattr(behind, "_old", lambda *_: [("orders", 0)])
    monkeypatch.setattr(behind, "_left", left)
    found = wait_for_old(KafkaConnection("kafka:9092"), [ORDERS], wait_s=wait_s, on_wait=told.append)
    assert (found, began) == ((Behind("orders", 7, 1),), began_s)
    assert len(told) == (len(began) > 1), "it is told once while it does not change"

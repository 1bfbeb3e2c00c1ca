"""Clocks by an append time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from retryapp.doctor import clock
from retryapp.doctor.clock import Measured, judge_measured
from retryapp.doctor.findings import Severity
from retryapp.kafka import AccessDeniedError, KafkaConnection


@pytest.mark.parametrize(
    ("measured", "severity", "words"),
    [
        (Measured(3, 2), Severity.OK, "3ms ahead, give or take 2ms"),
        (Measured(-1_500, 600), Severity.OK, "1s500ms slow"),
        (Measured(-1_500, 400), Severity.WARNING, "1s500ms slow"),
        (Measured(1_002, 1), Severity.WARNING, "1s2ms ahead"),
    ],
)
def test_a_measured_difference_counts_when_it_is_sure(measured: Measured, severity: Severity, words: str) -> None:
    """What may be the round trip is no finding."""
    found = judge_measured(measured)
    assert found.severity is severity
    assert words in found.seen


class Refused:
    """A client whose login may not write to the topic, as the client library behaves."""

    def __init__(self, *_args: object, **_more: object) -> None:
        self._told: Callable[[KafkaError, None], object] | None = None

    def init_transactions(self, _timeout_s: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def produce(self, *_args: object, on_delivery: Callable[[Any, Any], object] | None = None, **_more: object) -> None:
        if self._told is not None:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._told = on_delivery or (lambda *_: None)

    def flush(self, _timeout_s: float) -> None:
        assert self._told is not None
        self._told(KafkaError(KafkaError._PURGE_QUEUE), None)

    def commit_transaction(self, _timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


def test_a_login_that_may_not_write_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says of the next record only that the transaction is in an erroneous state."""
    monkeypatch.setattr(clock, "Producer", Refused)
    monkeypatch.setattr(KafkaConnection, "client", lambda _self, kind, **more: kind(**more))
    with pytest.raises(
        AccessDeniedError, match=r"could not write to topic g\.orders\.events .*authorization failed.*Needed: Write"
    ):
        clock.measure(KafkaConnection("b:9092"), "g", "g.orders.events", wall_ms=lambda: 0, timeout_s=0)

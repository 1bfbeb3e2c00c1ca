"""Clocks by an append time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import Subject, clock
from retryapp.doctor.clock import Measured, judge_measured
from retryapp.doctor.examine import _Cluster
from retryapp.doctor.findings import Severity
from retryapp.kafka import AccessDeniedError, KafkaConnection, PlanOptions, TopicState


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


class Client:
    """A client whose transactions work, but for what `fault` raises when they are to be written out."""

    def __init__(self, *, fault: BaseException, **options: Any) -> None:
        self.calls, self.options, self._fault = list[str](), options, fault

    def flush(self, _timeout_s: float) -> None:
        raise self._fault

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_more: self.calls.append(name)


SLOW = KafkaConnection("127.0.0.1:1", {"socket.timeout.ms": "60000"})
FENCED = KafkaException(KafkaError(KafkaError._FENCED))


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), BrokerUnreachableError),
        (FENCED, clock.FencedError),
    ],
)
def test_no_transaction_is_left_open(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException, raised: type[BaseException]
) -> None:
    """Whoever reads committed events waits for its end; of a doctor that is killed, as long as for a killed lane."""
    client = Client(fault=fault)
    monkeypatch.setattr(KafkaConnection, "client", lambda _self, _kind, **more: client.options.update(more) or client)
    with pytest.raises(raised):
        clock.measure(KafkaConnection("b:9092"), "g", "g.orders.events", wall_ms=lambda: 0, timeout_s=0)
    assert client.calls[-1] == "abort_transaction"
    assert client.options["transaction_timeout_ms"] == 15_000


@pytest.mark.parametrize("timeout_s", [0.05, 60])
def test_patience_that_an_app_has_with_brokers_is_not_that_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """The client library refused to be made, and all other findings were lost."""
    monkeypatch.setattr(clock, "_aborted", lambda producer, _timeout_s: _tried(producer))
    with pytest.raises(BrokerUnreachableError):
        clock.measure(SLOW, "g", "g.orders.events", wall_ms=lambda: 0, timeout_s=timeout_s)


def _tried(producer: Producer) -> AbstractContextManager[None]:
    producer.init_transactions(0.05)
    return nullcontext()


def test_a_second_doctor_is_no_missing_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of two that write at once ends the other's transaction: to grant rights would change nothing."""
    topology = HandlerTopology("g", "orders", delays_ms=(1_000,))
    subject = Subject(
        connection=KafkaConnection("b:9092"), group="g", topologies=(topology,), options=PlanOptions(),
        session_timeout_ms=15_000, datadir=tmp_path, write=True,
    )  # fmt: skip
    monkeypatch.setattr(KafkaConnection, "client", lambda *_args, **_more: Client(fault=FENCED))
    cluster = _Cluster(subject, lambda: 0)
    cluster.states = {topology.events: TopicState(name="t", topic_id="t", partitions=1, replication=1, config={})}
    found = list(cluster._clock())
    assert [each.severity for each in found] == [Severity.NOTE, Severity.NOTE]
    assert all("another doctor has ended our transaction" in each.why for each in found)


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

    def abort_transaction(self, _timeout_s: float) -> None: ...


def test_a_login_that_may_not_write_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says of the next record only that the transaction is in an erroneous state."""
    monkeypatch.setattr(clock, "Producer", Refused)
    monkeypatch.setattr(KafkaConnection, "client", lambda _self, kind, **more: kind(**more))
    with pytest.raises(
        AccessDeniedError, match=r"could not write to topic g\.orders\.events .*authorization failed.*Needed: Write"
    ):
        clock.measure(KafkaConnection("b:9092"), "g", "g.orders.events", wall_ms=lambda: 0, timeout_s=0)

"""Writers of records, against the broker that the client library has for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from typing_extensions import override

from retryapp.core.errors import BrokerUnreachableError, TopicMissingError
from retryapp.core.hops import Outgoing
from retryapp.kafka import KafkaConnection, writer
from retryapp.kafka.errors import AccessDeniedError, KafkaRequestError
from retryapp.kafka.writer import write_records, write_together


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Address of a broker in this process, with a topic `orders`."""
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "127.0.0.1:1"})
    owner.list_topics("orders", 10)
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(0)  # it lives until here


def record(value: bytes = b"x") -> Outgoing:
    return Outgoing("orders", 0, None, value, ())


@pytest.mark.parametrize("write", [write_records, write_together])
def test_writers_wait_while_the_queue_of_the_client_is_full(
    bootstrap: str, write: Callable[[KafkaConnection, str, Sequence[Outgoing]], None]
) -> None:
    """At 100,000 records, by the client's default, they raised its `BufferError`."""
    write(KafkaConnection(bootstrap, {"queue.buffering.max.messages": "1"}), "orders", [record()] * 3)


def test_patience_that_an_app_has_with_brokers_is_not_that_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library refused to be made, and so no command was sent."""

    class Hasty(Producer):
        @override
        def init_transactions(self, timeout: float = -1) -> None:
            super().init_transactions(0.05)

    monkeypatch.setattr(writer, "Producer", Hasty)
    with pytest.raises(BrokerUnreachableError):
        write_together(KafkaConnection("127.0.0.1:1", {"socket.timeout.ms": "60000"}), "orders", [record()])


@pytest.mark.parametrize("unsent", [None, 1])
def test_records_that_no_broker_answers_for_may_be_there(monkeypatch: pytest.MonkeyPatch, unsent: int | None) -> None:
    """A broker that is there would have refused them. Who sent a command was not told that its fate is not known."""

    class Mute(Producer):
        @override
        def flush(self, timeout: float = -1) -> int:
            return super().flush(timeout) if unsent is None else unsent

    monkeypatch.setattr(writer, "Producer", Mute)
    monkeypatch.setattr(writer, "WRITE_TIMEOUT_S", 0.1)
    with pytest.raises(BrokerUnreachableError):
        write_records(KafkaConnection("127.0.0.1:1"), "orders", [record()])


def test_a_transaction_that_fails_is_aborted(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who read committed records waited 15 s for its end."""
    aborted: list[Producer] = []

    class Watched(Producer):
        @override
        def abort_transaction(self, timeout: float = -1) -> None:
            super().abort_transaction(timeout)
            aborted.append(self)

    monkeypatch.setattr(writer, "Producer", Watched)
    with pytest.raises(KafkaRequestError, match="too large"):
        write_together(KafkaConnection(bootstrap), "orders", [record(), record(bytes(2_000_000))])
    assert len(aborted) == 1


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError._FATAL])
def test_a_writer_that_others_fence_again_and_again_begins_anew(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It gave up after eight tries, and at once when its client was fenced before it was asked (`_FATAL`)."""
    fenced: list[Producer] = []

    class Fenced(Producer):
        @override
        def produce(self, *args: Any, **kwargs: Any) -> None:
            if len(fenced) < 10:
                fenced.append(self)
                raise KafkaException(KafkaError(code))
            super().produce(*args, **kwargs)

    monkeypatch.setattr(writer, "Producer", Fenced)
    monkeypatch.setattr(writer, "_PAUSE_S", 0.0)
    write_together(KafkaConnection(bootstrap), "orders", [record()])
    assert len(fenced) == 10


def test_a_login_that_may_write_to_no_topic_is_told_so(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client raises that beneath the callback of a record; it passed for a fault of ours."""

    class Refused(Producer):
        @override
        def flush(self, *args: Any, **kwargs: Any) -> int:
            fatal = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
            raise SystemError("returned a result with an exception set") from fatal

    monkeypatch.setattr(writer, "Producer", Refused)
    with pytest.raises(AccessDeniedError, match=r"write to topic orders .* Topic authorization failed"):
        write_records(KafkaConnection(bootstrap), "orders", [record()])


def test_what_the_client_refuses_at_once_is_named(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the client knows the topic, it refuses a partition or a login that does not exist with its own error."""
    told = list[bytes | None]()

    class Knowing(Producer):
        @override
        def produce(self, topic: str, value: bytes | None = None, *given: Any, **more: Any) -> None:
            self.list_topics(topic, 10)
            told.append(value)
            super().produce(topic, value, *given, **more)

    monkeypatch.setattr(writer, "Producer", Knowing)
    nowhere = Outgoing("orders", 99, None, b"nowhere", ())
    with pytest.raises(TopicMissingError, match="orders"):
        write_records(KafkaConnection(bootstrap), "orders", [record(), nowhere, record()])
    assert told == [b"x", b"nowhere"]

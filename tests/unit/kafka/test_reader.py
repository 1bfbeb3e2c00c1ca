"""A following of a topic whose client reports errors, and its end, without a broker."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError

from retryapp.core.errors import TopicMissingError
from retryapp.kafka import KafkaConnection, reader
from retryapp.kafka.errors import AccessDeniedError, KafkaRequestError, UnreadableHeaderError
from retryapp.kafka.reader import follow_topic, read_keys


class Message:
    """A message of the client library: a record, or an error."""

    def __init__(self, value: bytes = b"", error: int | None = None, header: str | None = None) -> None:
        self._value = value
        self._error = None if error is None else KafkaError(error)
        self._header = header

    def error(self) -> KafkaError | None:
        return self._error

    def headers(self) -> list[tuple[str, bytes]]:
        return [] if self._header is None else [(b"\xff".decode(self._header), b"")]

    def __getattr__(self, name: str) -> Any:
        found = {"topic": "t", "partition": 0, "offset": 7, "timestamp": (1, 5), "key": None, "value": self._value}
        return lambda: found[name]


class Client:
    """A consumer that gives messages in portions; what is `poll`ed first is one of them."""

    def __init__(self, *portions: list[Message]) -> None:
        self.portions = list(portions)
        self.assigned: list[tuple[str, int, int]] = []
        self.closed = 0

    def assign(self, places: Any) -> None:
        self.assigned = [(place.topic, place.partition, place.offset) for place in places]

    def poll(self, _timeout_s: float) -> Message | None:
        return self.portions[0].pop(0) if self.portions else None

    def consume(self, _number: int, _timeout_s: float) -> list[Message]:
        return self.portions.pop(0)

    def incremental_unassign(self, places: Any) -> None:
        self.assigned = []

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Follow the topic `t` from offset 5 of its partition 3 on, with a client."""

    def begin(client: Client) -> Any:
        monkeypatch.setattr(KafkaConnection, "client", lambda *_args, **_options: client)
        return follow_topic(KafkaConnection("localhost:1"), "t", {3: 5})

    return begin


def test_it_begins_where_it_is_told_and_ends_with_its_reader(follow: Any) -> None:
    """Whoever stops reading leaves no client behind."""
    client = Client([Message(b"a"), Message(b"b")])
    found = follow(client)
    assert [record and record.value for record in (next(found), next(found), next(found))] == [b"a", b"b", None]
    assert (client.assigned, client.closed) == ([("t", 3, 5)], 0)
    found.close()
    assert client.closed == 1


@pytest.mark.parametrize("error", [KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_the_end_of_a_partition_and_a_broker_that_is_away_are_passed(follow: Any, error: int) -> None:
    """They are no records; what comes after them is."""
    found = follow(Client([Message(error=error), Message(b"a")]))
    assert next(found).value == b"a"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KafkaError._BAD_MSG, KafkaRequestError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissingError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDeniedError),
    ],
)
def test_damage_and_refusals_end_it(follow: Any, error: int, raised: type[Exception]) -> None:
    """Records before the error come first; then it is raised."""
    client = Client([Message(b"a"), Message(error=error)])
    found = follow(client)
    assert next(found).value == b"a"
    with pytest.raises(raised):
        next(found)
    assert client.closed == 1


def test_a_header_that_is_not_utf8_ends_it_and_is_named(follow: Any) -> None:
    """Python cannot hold it."""
    client = Client([Message(b"a", header="utf-8")])
    with pytest.raises(UnreadableHeaderError, match=r"t\[0\]@7"):
        next(follow(client))
    assert client.closed == 1


def test_a_key_is_read_beside_a_header_that_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for a person's records is not stopped by a stranger's."""
    monkeypatch.setattr(KafkaConnection, "client", lambda *_args, **_options: Client([Message(header="utf-8")]))
    monkeypatch.setattr(reader, "KafkaAdmin", lambda _: Mock(offsets=lambda *_: {0: range(7, 8)}))
    assert list(read_keys(KafkaConnection("localhost:1"), "t")) == [(None, 5)]

"""What a user's decoder may return, raise and take, and what it is given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.serialization import SerializationContext, StringDeserializer
from pydantic import BaseModel

from retryapp.core.errors import InvalidSettingError
from retryapp.core.masking import parse_mask
from retryapp.core.topology import HandlerTopology
from retryapp.lookup import decoding
from retryapp.lookup.decoding import KEY, VALUE, Decoding
from retryapp.lookup.payloads import MAX_TEXT_BYTES, Kind, Payload


class Order(BaseModel):
    """What deserializers of classes return."""

    id: int
    price: Decimal


@dataclass
class Blob:
    """Bytes that are no text."""

    raw: bytes


def shown(found: Any, mask: str = "", headers: Any = ()) -> Payload:
    """Return a value of which the decoder makes something, or whose decoder raises it."""

    def decoder(_data: bytes, _about: SerializationContext) -> Any:
        if isinstance(found, BaseException):
            raise found
        return found

    return Decoding(decoder).shows("orders", parse_mask(mask))(b"\x00\xff", VALUE, headers)


@pytest.mark.parametrize(
    ("found", "kind", "text"),
    [
        ("plain", Kind.TEXT, "plain"),
        ('{"a": 1.10}', Kind.JSON, '{"a": 1.10}'),
        ("", Kind.EMPTY, ""),
        ("a\udcff", Kind.TEXT, "a\\udcff"),
        (b'{"a": 1}', Kind.JSON, '{"a": 1}'),
        (b"\xff", Kind.BINARY, ""),
        ({"a": [1, None], 2: "Zo\u00eb"}, Kind.JSON, '{"a": [1, null], "2": "Zo\u00eb"}'),
        ({"at": datetime(2030, 1, 31, tzinfo=UTC)}, Kind.JSON, '{"at": "2030-01-31T00:00:00Z"}'),
        ({"raw": b"\x01\xff", "id": b"7"}, Kind.JSON, '{"raw": "01ff", "id": "7"}'),
        (Blob(raw=b"\x01\xff"), Kind.JSON, '{"raw": "01ff"}'),
        (Order(id=7, price=Decimal("1.10")), Kind.JSON, '{"id": 7, "price": "1.10"}'),
        (0, Kind.JSON, "0"),
        (float("nan"), Kind.JSON, "NaN"),
    ],
)  # fmt: skip
def test_text_bytes_and_what_json_can_show_are_shown(found: Any, kind: Kind, text: str) -> None:
    """Beside the bytes, which stay what they are."""
    payload = shown(found)
    assert payload.decoded is not None
    assert (payload.decoded.kind, payload.decoded.text, payload.problem) == (kind, text, "")
    assert (payload.kind, payload.content) == (Kind.BINARY, b"\x00\xff")


def test_a_long_text_is_cut() -> None:
    """As a long value is."""
    payload = shown({"a": "x" * MAX_TEXT_BYTES})
    assert payload.decoded is not None
    assert payload.decoded.truncated
    assert len(payload.decoded.content) == MAX_TEXT_BYTES


def test_none_leaves_a_payload_as_it_is() -> None:
    """The decoder says that it is none of its own."""
    payload = shown(None)
    assert payload.decoded is None
    assert payload.problem == ""


class UnspeakableError(Exception):
    """An error that has no text either."""

    def __str__(self) -> str:
        raise ZeroDivisionError


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (ValueError("no schema 7"), "decoder failed: ValueError: no schema 7"),
        (KeyError(), "decoder failed: KeyError"),
        (SystemExit(3), "decoder failed: SystemExit: 3"),
        (UnspeakableError(), "decoder failed: UnspeakableError: (its text cannot be had: "),
        (object(), "decoder failed: TypeError: it returned object; expected text, or what JSON can show: "),
        (LOOP, "decoder failed: "),
    ],
)
def test_what_goes_wrong_is_told_beside_the_bytes(found: Any, problem: str) -> None:
    """And never raised."""
    payload = shown(found)
    assert payload.problem.startswith(problem)
    assert payload.decoded is None
    assert payload.content == b"\x00\xff"
    assert payload.facts["problem"] == payload.problem


def test_a_long_text_of_an_error_is_cut() -> None:
    """It may have a whole record."""
    assert len(shown(ValueError("x" * 10_000)).problem) == decoding.MAX_PROBLEM_BYTES


def test_masked_headers_are_in_nothing_that_it_says() -> None:
    """A cut text of an error has no part of one either."""
    headers = (("Authorization", b"Bearer secret-token"),)
    payload = shown({"sent": {"by": "secret-token"}, "all": [*headers], "ok": 1}, "authorization", headers)
    assert payload.decoded is not None
    assert payload.decoded.text == '{"sent": {"by": "***"}, "all": [["Authorization", "***"]], "ok": 1}'
    problem = shown(ValueError("x" * 460 + " Bearer secret-token"), "authorization", headers).problem
    assert "secr" not in problem
    assert problem.startswith("decoder failed: ValueError: xxx")


def test_the_text_of_an_error_is_not_shown_where_fields_are_masked() -> None:
    """It may quote any of them: its type is told."""
    problem = shown(ValueError("card secret-card"), "/card").problem
    assert problem == "decoder failed: ValueError, with a text that may have masked fields"


def test_a_decoder_is_given_what_deserializers_take() -> None:
    """Bytes, the topic that they were sent to, key or value, and the record's own headers; not null, nothing empty."""
    asked: list[tuple[bytes, str, str, Any]] = []

    def decoder(data: bytes, about: SerializationContext) -> None:
        asked.append((data, about.topic, str(about.field), about.headers))

    orders = HandlerTopology(group="billing", main="orders")
    letters = HandlerTopology(group="billing", main=orders.dlq, drop=True, letters_of="orders")
    known = Decoding(decoder, lambda: [orders, letters])
    headers = (("trace", b"t-1"), ("retry-attempt", b"2"), ("none", None))
    for main, raw, field in (
        ("orders", b"k", KEY),
        (letters.main, b"v", VALUE),
        ("orders", None, VALUE),
        ("orders", b"", KEY),
    ):
        known.shows(main)(raw, field, headers)
    own = [("trace", b"t-1"), ("none", None)]
    assert asked == [(b"k", "orders", "key", own), (b"v", "orders", "value", own)]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What calls wait for that take too long: set, they end."""
    monkeypatch.setattr(decoding, "LIMIT_S", 0.01)
    event = threading.Event()
    yield event
    event.set()


def test_a_call_that_takes_too_long_is_told_and_no_more_begin(
    stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """While some go on; once they have ended others begin. None keeps the process alive."""
    calls: list[threading.Thread] = []

    def decoder(_data: bytes, _about: SerializationContext) -> str:
        calls.append(threading.current_thread())
        if calls[decoding.MOST_OVERDUE :]:
            return "fast again"
        stuck.wait(20)
        return "late"

    show = Decoding(decoder).shows("orders")
    for _ in range(decoding.MOST_OVERDUE):
        assert show(b"\xff", VALUE, ()).problem == "decoder failed: it takes longer than 0.01 s"
    assert all(thread.daemon for thread in calls)
    assert [record.message for record in caplog.records] == ["retryapp.decoder_slow"] * decoding.MOST_OVERDUE
    assert show(b"\xff", VALUE, ()).problem == "decoder failed: 4 calls go on since more than 0.01 s"
    assert len(calls) == decoding.MOST_OVERDUE
    stuck.set()
    for thread in [*calls]:
        thread.join(20)
    decoding.LIMIT_S = 20.0  # type: ignore[misc]  # the fixture sets it back
    assert getattr(show(b"\xff", VALUE, ()).decoded, "text", None) == "fast again"


async def _async(_data: bytes, _about: SerializationContext) -> str:
    return ""


@pytest.mark.parametrize("wrong", ["avro", 7, _async])
def test_a_decoder_is_a_plain_function(wrong: Any) -> None:
    with pytest.raises(InvalidSettingError, match="expected a plain function"):
        Decoding(wrong)


def test_a_deserializer_of_the_kafka_client_is_a_decoder() -> None:
    """It is given its own kind of context."""
    payload = Decoding(StringDeserializer("latin_1")).shows("orders")("Zo\u00eb".encode("latin_1"), VALUE, ())
    assert payload.kind is Kind.BINARY
    assert getattr(payload.decoded, "text", None) == "Zo\u00eb"

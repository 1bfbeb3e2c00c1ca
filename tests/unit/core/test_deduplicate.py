"""Event ids and the rows by which they are remembered."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import pytest

from retryapp.core.deduplicate import Deduplicate, Seen, decode_seen, encode_seen, live_rows
from retryapp.core.errors import DamagedRowError, InvalidDurationError, InvalidSettingError, NewerRowError
from retryapp.core.record import Record

BY_HEADER = Deduplicate("header:event-id")


def record(*headers: tuple[str, bytes | None], value: bytes = b"v") -> Record:
    return Record("orders", 0, 3, 1, b"k", value, headers)


def key(text: bytes) -> bytes:
    """Return the key of an event id, computed apart."""
    return hashlib.sha256(text).digest()[:16]


def test_the_id_is_the_last_header_of_the_name() -> None:
    """A header may be there several times; empty and null ones are no ids."""
    assert BY_HEADER.identity(record(("event-id", b"e1"))) == key(b"e1")
    assert BY_HEADER.identity(record(("event-id", b"e1"), ("other", b"x"), ("event-id", b"e2"))) == key(b"e2")
    for none in (record(), record(("event-id", None)), record(("event-id", b"")), record(("Event-Id", b"e1"))):
        assert BY_HEADER.identity(none) is None


def test_a_function_tells_the_id() -> None:
    """Text and bytes are the same id; None and nothing are none."""
    assert Deduplicate(lambda found: found.value).identity(record(value=b"a")) == key(b"a")
    assert Deduplicate(lambda _found: "a").identity(record()) == key(b"a")
    assert Deduplicate(lambda _found: None).identity(record()) is None
    assert Deduplicate(lambda _found: "").identity(record()) is None


@pytest.mark.parametrize("found", [7, 0, ("a",)])
def test_a_function_that_returns_something_else_is_told_so(found: Any) -> None:
    """A number would be another id in another program."""
    with pytest.raises(TypeError, match=r"str, bytes or None, not (int|tuple)"):
        Deduplicate(lambda _found: found).identity(record())


async def coroutine(_record: Record) -> str:
    return "a"


@pytest.mark.parametrize(
    "by",
    ["event-id", "header:", 7, coroutine, functools.partial(coroutine), lambda: "a", lambda _record, _more: "a", bytes],
)
def test_a_place_that_is_none_is_refused(by: Any) -> None:
    """A name alone could be a header, a field or the key; a function of another kind would fail for each record."""
    with pytest.raises(InvalidSettingError, match="header:"):
        Deduplicate(by)


def test_windows_are_lengths_of_time() -> None:
    """A day unless said otherwise."""
    assert BY_HEADER.window_ms == 86_400_000
    assert Deduplicate("header:x", window="90s").window_ms == 90_000
    with pytest.raises(InvalidSettingError, match="at least 1s"):
        Deduplicate("header:x", window="10ms")
    with pytest.raises(InvalidDurationError):
        Deduplicate("header:x", window="soon")


def test_rows_come_back_as_they_were() -> None:
    """These bytes lie on topics: they never change within a version."""
    seen = Seen(bytes(range(16)), 2**40, 1_700_000_000_000)
    assert encode_seen(seen).hex() == "0100000100000000000000018bcfe56800"
    assert decode_seen(seen.identity, encode_seen(seen)) == seen


def test_what_is_no_row_is_passed_over_and_what_is_newer_is_not() -> None:
    """A newer row may mean what nobody here knows."""
    seen, gone = Seen(b"a" * 16, 1, 2_000), Seen(b"b" * 16, 2, 1_000)
    raw = encode_seen(seen)
    strange = [(b"owner", b"mark"), (b"c" * 16, None), (b"c" * 16, b"\xffjunk"), (b"c" * 16, raw + b"x")]
    rows = [(seen.identity, raw), (gone.identity, encode_seen(gone)), *strange]
    assert live_rows(rows, 1_000) == [seen]
    with pytest.raises(DamagedRowError):
        decode_seen(b"short", raw)
    with pytest.raises(NewerRowError):
        live_rows([(seen.identity, b"\x02" + raw[1:])], 0)

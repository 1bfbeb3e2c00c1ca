"""Exact bytes of rows and events, identities as text, and errors as objects."""

from __future__ import annotations

import inspect
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

import retryapp
from retryapp.core import errors, lane_errors
from retryapp.core.errors import DamagedEventError, DamagedMetadataError, DamagedRowError, RetryAppError
from retryapp.core.lifecycle import (
    AnyEvent,
    CircuitChanged,
    Discarded,
    Handled,
    PolicyUsed,
    Progress,
    Skipped,
    Succeeded,
    Superseded,
    decode_event,
)
from retryapp.core.record import Origin, failure_id, idempotency_key, parse_failure_id, parse_origin, short_topic_id
from retryapp.core.row_keys import RowKey, identity_of, is_identity, parse_row_key, row_key
from retryapp.core.rows import (
    ROW_OVERHEAD_BYTES,
    PendingRow,
    Reference,
    as_sent,
    decode_row,
    encode_row,
    failure_bytes,
    failure_in,
)
from retryapp.core.text import cut_tail, cut_text, escape_text, unescape_text
from retryapp.core.traces import qualified_name

ROW = PendingRow(
    b"k", None, (("a", b"1"), ("é", None)), 1_700_000_000_000, 1_699_999_999_000, 2, 3, 4, 5, b"\x01\x00\x00"
)
ROW_BYTES = bytes.fromhex(
    "02" "00" "00" "04" "0000018bcfe56800" "0000018bcfe56418" "00000002" "00000003" "00000005"
    "00000001" "ffffffff" "00000002" "00000003"
    "00000001" "00000001" "00000002" "ffffffff"
    "6b" "61" "31" "c3a9" "010000"
)  # fmt: skip
"""What version 2 writes. These bytes lie in changelogs: they are never changed, only joined by a later version's."""


def test_version_2_of_a_row_is_written_and_read_as_ever() -> None:
    """The layout is pinned."""
    assert encode_row(ROW) == ROW_BYTES
    assert decode_row(ROW_BYTES) == ROW
    assert len(encode_row(PendingRow(None, None, ()))) == ROW_OVERHEAD_BYTES


def test_the_last_failure_ends_a_row() -> None:
    """Flag and tag are pinned; other facts and a reference stay what they are; in the middle it is none."""
    failed = replace(ROW, failure=failure_bytes(b"cause", 2, 258), reference=Reference(1, 2, 3, 4)).in_circuit("mail")
    raw = encode_row(failed)
    assert raw[3] == failed.flags | 16
    assert raw[-20:] == b"\x04\x00\x11cause" + bytes.fromhex("000000020000000000000102")
    assert failure_in(raw) == failure_in(as_sent(raw)) == (b"cause", 2, 258)
    assert decode_row(raw) == failed
    assert decode_row(encode_row(failed.held_next(7))).failure == failed.failure
    longer = decode_row(ROW_BYTES[:3] + b"\x14" + ROW_BYTES[4:])
    assert (longer.failure, longer.more, failure_in(ROW_BYTES)) == (b"", ROW.more, None)


def test_identity_and_row_key_are_pinned() -> None:
    """Kind, hash of the main topic and its id, partition, offset; the key in the store begins with the due time."""
    identity = bytes.fromhex("01" "ff18b1caadb0e03e" "00000003" "0000000000000412")  # fmt: skip
    assert identity_of(Origin("orders", "kq8G0bTz", 3, 1042)) == identity
    key = row_key(1_700_000_000_000, identity)
    assert key == bytes.fromhex("0000018bcfe56800") + identity
    assert parse_row_key(key) == RowKey(1_700_000_000_000, 1, 0xFF18B1CAADB0E03E, 3, 1042)
    assert not any(is_identity(other) for other in (None, b"progress", key, b"\x02" + identity[1:]))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (32, b"\x7f\xff\xff\xff"), (32, b"\xff\xff\xff\xfe"), (40, b"\xff\xff\xff\xff"),
        (44, b"\xff\xff\xff\xff"), (48, b"\xff\xff\xff\xff"),
    ],
)  # fmt: skip
def test_lengths_that_lie_are_refused(at: int, value: bytes) -> None:
    """A length that leaves the row, or is below null's -1, is no length; nothing large is allocated for it."""
    with pytest.raises(DamagedRowError):
        decode_row(ROW_BYTES[:at] + value + ROW_BYTES[at + len(value) :])


def test_identities_as_text() -> None:
    """An origin and a failure id, as they stand in headers and event keys."""
    origin = Origin("orders", short_topic_id("kq8G0bTzQxWm1XkY1r2s3A"), 3, 1042)
    assert origin.text == "orders@kq8G0bTz/3/1042"
    assert parse_failure_id(failure_id("billing", origin)) == ("billing", origin)
    assert idempotency_key("billing/orders@kq8G0bTz/3/1042") == "1e817c9c-9019-5d2d-a845-540ef3efc9ed"
    for text in ("", "orders", "orders@/3/1", "orders@id/3/-1", "orders@id/3/1/", "orders@id/x/1", "orders@id/3/1\n"):
        with pytest.raises(DamagedMetadataError):
            parse_origin(text)
    for text in ("billing", "/orders@id/1/2", ""):
        with pytest.raises(DamagedMetadataError):
            parse_failure_id(text)


OWNER = {"group": "billing", "handler": "billing.charge"}
IDS = {"failure_id": "billing/orders@kq8G0bTz/3/1042", "origin": "orders@kq8G0bTz/3/1042"}
RANGE = {"partition": 3, "from_offset": 10, "to_offset": 20, "from_ms": 1, "to_ms": 2}
SUCCEEDED = Succeeded(**OWNER, **IDS, attempt=2, started_ms=10, ended_ms=20, lateness_ms=3)
SKIPPED = Skipped(**OWNER, **IDS, first_offset=1040, at_ms=7)
DISCARDED = Discarded(
    **OWNER, **IDS, reason="exhausted", error_type="E", error_message="", fingerprint="f", attempt=2, delivery=2,
    policy="d", origin_timestamp_ms=-1, first_failed_ms=1, started_ms=2, ended_ms=3,
)  # fmt: skip
HANDLED = Handled(**OWNER, **IDS, at_ms=7)
SUPERSEDED = Superseded(**OWNER, **IDS, by_offset=1044, delivery=2, attempt=2, at_ms=7)
POLICY = PolicyUsed(**OWNER, main="orders", text="5m; timeout=5m", digest="d", at_ms=1)
PROGRESS = Progress(**OWNER, **RANGE, main="orders", received=9, first_try_ok=8, failed=1)  # type: ignore[arg-type]

CIRCUIT = CircuitChanged(
    **OWNER, main="orders", partition=3, from_state="closed", to_state="open", cause="9 of 12 records failed", at_ms=7
)


@pytest.mark.parametrize(
    ("event", "key"),
    [
        (SUCCEEDED, b"billing/orders@kq8G0bTz/3/1042"),
        (SKIPPED, b"billing/orders@kq8G0bTz/3/1042"),
        (DISCARDED, b"billing/orders@kq8G0bTz/3/1042"),
        (DISCARDED.model_copy(update={"kind": "failed"}), b"billing/orders@kq8G0bTz/3/1042"),
        (HANDLED, b"billing/orders@kq8G0bTz/3/1042"),
        (SUPERSEDED, b"billing/orders@kq8G0bTz/3/1042"),
        (POLICY, b"policy:billing/orders"),
        (PROGRESS, b"progress:billing/orders/3"),
        (CIRCUIT, b"circuit:billing/orders/3"),
    ],
)
def test_events_read_back(event: AnyEvent, key: bytes) -> None:
    """As JSON with a version and a kind, under their key."""
    raw = event.to_json()
    assert decode_event(raw) == event
    assert event.key == key
    assert json.loads(raw)["v"] == 1
    assert json.loads(raw)["kind"] == event.kind


def test_version_1_of_an_event_is_read_as_ever() -> None:
    """Pinned text; a field that a newer worker added is passed over, and one that an older did not know filled in."""
    raw = (
        b'{"v":1,"group":"billing","handler":"billing.charge","kind":"succeeded",'
        b'"failure_id":"billing/orders@kq8G0bTz/3/1042","origin":"orders@kq8G0bTz/3/1042","replays":0,'
        b'"attempt":2,"started_ms":10,"ended_ms":20,"lateness_ms":3}'
    )
    written = raw.replace(b'"attempt":2', b'"attempt":2,"delivery":2').replace(b":3}", b':3,"worker":""}')
    assert SUCCEEDED.to_json() == written
    assert decode_event(raw) == SUCCEEDED, "an older worker's delivery is the attempt"
    assert decode_event(raw[:-1] + b',"mood":"good"}') == SUCCEEDED
    skipped = decode_event(
        b'{"v":1,"group":"billing","handler":"billing.charge","kind":"skipped",'
        b'"failure_id":"billing/orders@kq8G0bTz/3/1042","origin":"orders@kq8G0bTz/3/1042","first_offset":7,"at_ms":10}'
    )
    assert isinstance(skipped, Skipped)
    assert (skipped.why, skipped.first_offset, skipped.delivery) == ("duplicate", 7, 0), "older ones are of duplicates"


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "value"),
        (b"{", "value"),
        (b"[]", "value"),
        (b'{"v":1,"kind":"nonsense"}', "nonsense"),
        (SUCCEEDED.to_json().replace(b'"v":1', b'"v":2'), "v"),
        (SUCCEEDED.to_json().replace(b'"attempt":2', b'"attempt":0'), "attempt"),
        (SUCCEEDED.to_json().replace(b'"attempt":2', b'"attempt":"2"'), "attempt"),
        (SUCCEEDED.to_json().replace(b'"delivery":2', b'"delivery":0'), "delivery"),
        (PROGRESS.to_json().replace(b'"to_offset":20', b'"to_offset":5'), "to_offset"),
    ],
)
def test_what_is_no_event_is_refused_by_name(raw: bytes, named: str) -> None:
    """The error says which field."""
    with pytest.raises(DamagedEventError, match=named):
        decode_event(raw)


def test_text_is_cut_on_characters_and_escaped() -> None:
    """No half characters; surrogates become visible; plus and percent are safe for any URL decoder."""
    assert (cut_text("éé", 3), cut_tail("éé", 3), cut_text("x", 0), cut_tail("x", 0)) == ("é", "é", "", "")
    assert cut_text("\udcff", 10) == "\\udcff"
    assert escape_text("a+b %\n", 100) == b"a%2Bb %25%0A"
    assert escape_text("a,b:c", 100, in_list=True) == b"a%2Cb%3Ac"
    assert unescape_text(b"a%2Bb %25%0A") == "a+b %\n"
    assert unescape_text(b"a\nb") is None


LEAVES = [
    each
    for module in (errors, lane_errors)
    for _, each in inspect.getmembers(module, inspect.isclass)
    if issubclass(each, RetryAppError) and "__init__" in vars(each)
]


@pytest.mark.parametrize("error_type", LEAVES, ids=lambda each: each.__name__)
def test_every_error_shows_its_facts_and_survives_pickling(error_type: type[RetryAppError]) -> None:
    """Facts are attributes and stand in the message; a copy from another process is the same."""
    names = [name for name in inspect.signature(error_type).parameters if name != "self"]
    known: dict[str, Any] = {"port": 9092, "newest": 1, "needed": 17, "free_bytes": 512, "topics": ("orders", "retry")}
    known |= {"committed": 90, "first": 100, "end": 150, "position": 95, "rows": 3, "store": 160}
    facts = {name: known.get(name, f"<{name}>") for name in names}
    error = error_type(**facts)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is error_type
    assert str(copy) == str(error)
    for name, value in facts.items():
        assert getattr(copy, name) == value
        assert (", ".join(value) if isinstance(value, tuple) else str(value)) in str(error)
    assert error_type.__doc__
    assert error.exit_code in {1, 2, 3, 4}


def test_errors_are_named_by_where_they_are_imported_from() -> None:
    """Their names stand in headers of records and in policies: moving one to another module must not rename it."""
    for name, each in vars(errors).items():
        if inspect.isclass(each) and issubclass(each, Exception):
            home = "retryapp" if name in retryapp.__all__ else "retryapp.core.errors"
            assert qualified_name(each) == f"{home}.{name}"

"""Bytes as a page shows them: bounded, and never other than they were sent."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.dead_index import index_letter
from retryapp.lookup import payloads
from retryapp.lookup.payloads import Kind, header_text, hex_dump, lay_out_json, payload_of, printable
from retryapp.lookup.records import dead_summary, key_text
from retryapp.ports import DeadEntry

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, 1]), st.booleans())
def test_laying_out_json_changes_space_between_tokens_only(value: object, indent: int | None, ascii_only: bool) -> None:
    """The result reads as the same value and does not depend on how the text was spaced."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    laid_out = lay_out_json(text)
    assert json.loads(laid_out) == json.loads(text)
    assert laid_out == lay_out_json(laid_out)
    assert laid_out == json.dumps(value, indent=2, ensure_ascii=ascii_only)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"n": 1.10}', "[1e400, 12345678901234567890]", r'["\u00e9\/"]'])
def test_laid_out_json_keeps_what_a_parser_would_lose(text: str) -> None:
    """Duplicate names, trailing zeros, huge numbers and escapes stand as they were sent."""
    assert re.sub(r"\s", "", lay_out_json(text)) == re.sub(r"\s", "", text)


def test_json_that_would_explode_is_left_as_it_is() -> None:
    """Deep nesting makes indentation grow with its square."""
    deep = "[" * 500 + "]" * 500
    assert lay_out_json(deep) == deep
    wide = "[" * 60 + "0," * 30_000 + "0" + "]" * 60
    assert lay_out_json(wide) == wide
    assert payload_of(b"[" * 60_000).kind is Kind.TEXT


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (None, Kind.NULL),
        (b"", Kind.EMPTY),
        (b'{"a":1}', Kind.JSON),
        (b"17", Kind.JSON),
        (b"NaN of what", Kind.TEXT),
        ("Zoë".encode(), Kind.TEXT),
        ("Zoë".encode("latin-1"), Kind.BINARY),
        (b"\x00\x00\x00\x00\x07magic", Kind.BINARY),
        (b"9" * 5_000, Kind.TEXT),
    ],
)
def test_kind_of_a_value(raw: bytes | None, kind: Kind) -> None:
    """JSON, text and bytes are told apart; null is not empty."""
    assert payload_of(raw).kind is kind


@given(st.binary(max_size=300))
def test_a_payload_says_what_was_sent(raw: bytes) -> None:
    """Text or base64 gives back the bytes of anything that is not cut."""
    import base64

    facts = payload_of(raw).facts
    back = base64.b64decode(str(facts["base64"])) if "base64" in facts else str(facts["text"]).encode()
    assert back == raw
    assert facts["size_bytes"] == facts["shown_bytes"] == len(raw)
    assert facts["truncated"] is False


@pytest.mark.parametrize("filler", [b"x", "é".encode(), "\U0001f600".encode()])
def test_long_text_is_cut_on_a_characters_boundary(filler: bytes) -> None:
    for shift in range(4):
        payload = payload_of(b"a" * shift + filler * (payloads.MAX_TEXT_BYTES + 1))
        assert payload.kind is Kind.TEXT
        assert payload.truncated
        assert len(payload.content) == payloads.MAX_TEXT_BYTES
        assert payloads.MAX_TEXT_BYTES - 4 < len(payload.text.encode()) <= payloads.MAX_TEXT_BYTES


def test_long_bytes_are_cut() -> None:
    """A dump is longer than what it shows: its bound is lower."""
    payload = payload_of(b"\xff" * 1_000_000)
    assert (payload.kind, len(payload.content)) == (Kind.BINARY, payloads.MAX_BINARY_BYTES)
    assert len(payload.laid_out.splitlines()) == payloads.MAX_BINARY_BYTES // 16


@given(st.binary(max_size=100))
def test_hex_dump_holds_every_byte(raw: bytes) -> None:
    """Reading the hex columns gives the bytes."""
    assert bytes.fromhex("".join(line[10:57] for line in hex_dump(raw).splitlines())) == raw


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"customer-17", "customer-17"),
        ("é".encode() * 20, "é" * 16 + "…"),
        (b"a" + "é".encode() * 20, "a" + "é" * 15 + "…"),
        ("é".encode("latin-1") + b"a" * 31, "0xe9" + "61" * 31),
        ("é".encode("latin-1") + b"a" * 90, "0xe9" + "61" * 31 + "…"),
        (b"a" * 32, "a" * 32),
        (b"a" * 33, "a" * 32 + "…"),
        (b"\x00a", "0x0061"),
        (b"a\x1b", "0x611b"),
        (b"", ""),
        (None, None),
    ],
)
def test_the_key_in_a_list_is_what_was_sent_or_hex(key: bytes | None, text: str | None) -> None:
    """A long one that is no UTF-8 lost its odd bytes, and looked like another key, as did one that was cut.

    A dead letter's index has the beginning alone.
    """
    letter = DeadEntry(partition=0, row=index_letter(7, (), key, 1))
    assert key_text(key) == dead_summary(letter)["key"] == text


def test_header_values_are_text_or_hex() -> None:
    """Null, empty and bytes are told apart; long ones are cut with their length."""
    assert header_text(None) is None
    assert header_text(b"") == ""
    assert header_text("é".encode()) == "é"
    assert header_text(b"\xff") == "0xff"
    cut = header_text(b"x" * 10_000)
    assert cut is not None
    assert cut.endswith("... (10000 bytes)")
    assert len(cut) < 4_200


@given(st.text(st.characters()))
def test_printable_text_hides_nothing(text: str) -> None:
    """No control, reordering or lone surrogate character is left; the result can be sent as UTF-8."""
    shown = printable(text)
    shown.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    if text.isascii() and text.isprintable():
        assert shown == text


def test_reordering_characters_are_shown_as_escapes() -> None:
    """A name cannot be made to read backwards."""
    assert printable("user\u202egnp.exe\ud800") == "user\\u202egnp.exe\\ud800"
    assert printable("two\nlines\tand é") == "two\nlines\tand é"

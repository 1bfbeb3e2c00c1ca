"""Templates of messages: total, bounded, and settled after one look."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from retryapp.core import causes
from retryapp.core.causes import MAX_CHARS, MAX_WORDS, template_of

PARTS = [
    "HTTP", "404", "503", "Not", "Found", "Not Found", "'", '"', "`", "None", "null", "John", "Smith", "it's", "-", "=",
    "key=", "a=1", "status", "code", "error", "[Errno 2]", "errno", "(", ")", "[", "]", "{", "}", ":", ";", ".", ",",
    "…", "<text>", "<number>", "<", ">", "1", "12", "0x1f", "2026-01-02", "17:48:00", "http://x/y", "a@b", "/a/b", "/",
    "C:\\", "\\", "ECONNRESET", "A_B", "SQLSTATE", "42P01", "sqlstate=", "ORA-1", "\n", "é", "\ud800", "\x00", "٣", "²",
    "ǅ", "x" * 41, "deadbeefdead", "abc12", "Connection", "refused", "long" * 10,
]  # fmt: skip
parts = st.lists(st.sampled_from(PARTS) | st.text(max_size=6), max_size=60)
messages = parts.map("".join) | parts.map(" ".join) | st.text(max_size=600)


@given(messages)
@settings(max_examples=100)
@example("HTTP 503 Service Unavailable " * 20)
@example("w " * 15 + "404 Not Found")
@example("a" * 319 + " Smith is locked")
@example("\ud800'\udfff")
def test_nothing_but_the_message_decides(message: str) -> None:
    """Whatever the text, nothing is raised; and not what came before it."""
    template = template_of(message)
    causes._template.cache_clear()
    assert template_of(message) == template


@given(messages)
@settings(max_examples=100)
def test_a_template_is_bounded(message: str) -> None:
    """In words and in characters."""
    template = template_of(message)
    assert len(template) <= MAX_CHARS
    assert len(template.removesuffix(" …").split()) <= MAX_WORDS
    assert template == " ".join(template.split())


@given(st.integers(0, 10**12), st.uuids(), st.ip_addresses(v=4), st.datetimes())
@settings(max_examples=50)
def test_values_are_taken_out(number: int, uid: object, address: object, at: object) -> None:
    """Numbers, ids, addresses and times never make two causes of one."""
    text = f"order {number} ({uid}) from {address} at {at}: broken"
    assert template_of(text) == "order <number> (<id>) from <ip> at <time>: broken"

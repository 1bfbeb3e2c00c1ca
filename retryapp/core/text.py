r"""Text in headers: cut to a number of bytes, and encoded in ASCII; and commands in messages.

Free text is percent-encoded (RFC 3986) so that any URL decoder reads it back: ``%``, ``+``, control characters and
everything outside ASCII become ``%XX`` of their UTF-8 bytes, the rest stays readable. Lone surrogates, which UTF-8 has
no bytes for, become ``\udcXX`` escapes when text is cut.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

_UNPRINTABLE: Final = re.compile(rb"[^\x20-\x7e]")
_OFTEN_ESCAPED: Final = tuple((bytes((code,)), b"%%%02X" % code) for code in b"%+\n")
_PARTS_LISTS: Final = tuple((bytes((code,)), b"%%%02X" % code) for code in b",:")
_ESCAPED: Final = re.compile(rb"(?:[\x20-\x24\x26-\x2a\x2c-\x7e]|%[0-9A-Fa-f]{2})*")
_SUGGESTED: Final = re.compile(r"('retryapp [a-z -]+ -A )MODULE(?=[ '])")
_SHORT: Final = 80
_REMEMBERED: Final = 1_024


def _well_formed(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _percent(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found[0][0]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things in words.

    >>> counted(1, "topic"), counted(2_000, "topic"), counted(2, "retry", "retries")
    ('1 topic', '2,000 topics', '2 retries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def cut_text(text: str, max_bytes: int) -> str:
    """Keep the beginning of a text: at most ``max_bytes`` of UTF-8, cut on a character's boundary."""
    if len(text) <= max_bytes and text.isascii():
        return text
    return _well_formed(text)[: max(0, max_bytes)].decode("utf-8", "ignore")


def cut_tail(text: str, max_bytes: int) -> str:
    """Keep the end of a text: at most ``max_bytes`` of UTF-8, cut on a character's boundary."""
    return _well_formed(text)[-max_bytes:].decode("utf-8", "ignore") if max_bytes > 0 else ""


def with_app(text: str, spec: str) -> str:
    """Have the commands that a text suggests name an application, as ``-A`` takes it: they can be run as printed.

    >>> with_app("Run 'retryapp topics grow -A MODULE'", "shop.billing:app")
    "Run 'retryapp topics grow -A shop.billing:app'"
    >>> with_app("a record that says -A MODULE itself", "billing")
    'a record that says -A MODULE itself'
    """
    return _SUGGESTED.sub(lambda command: command[1] + spec, text) if spec else text


def escape_text(text: str, max_bytes: int, *, in_list: bool = False) -> bytes:
    """Cut a text to `max_bytes` and percent-encode it, up to three times as long; `in_list`: commas and colons too.

    Short texts are cached: most are names, the same in each record.
    """
    return (_escaped_once if len(text) <= _SHORT else _escape)(text, max_bytes, in_list)


def unescape_text(raw: bytes) -> str | None:
    """Decode percent-encoded text; None if it is not, or its bytes are not UTF-8."""
    return (_unescaped_once if len(raw) <= _SHORT else _unescape)(raw)


def _escape(text: str, max_bytes: int, in_list: bool) -> bytes:
    raw = _well_formed(text)
    if len(raw) > max_bytes:
        raw = cut_text(text, max_bytes).encode()
    for plain, escaped in _OFTEN_ESCAPED + _PARTS_LISTS if in_list else _OFTEN_ESCAPED:  # the percent sign first
        if plain in raw:
            raw = raw.replace(plain, escaped)
    return raw if text.isascii() and text.isprintable() else _UNPRINTABLE.sub(_percent, raw)


def _unescape(raw: bytes) -> str | None:
    if raw.isascii() and b"%" not in raw and b"+" not in raw:
        text = raw.decode("ascii")
        return text if text.isprintable() else None
    if not _ESCAPED.fullmatch(raw):
        return None
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None


_escaped_once = lru_cache(_REMEMBERED)(_escape)
_unescaped_once = lru_cache(_REMEMBERED)(_unescape)

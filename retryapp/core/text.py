r"""Text that has to fit into a header: cut to a number of bytes, and written in ASCII.

Free text is percent-encoded (RFC 3986) so that any URL decoder reads it back: ``%``, ``+``, control characters and
everything outside ASCII become ``%XX`` of their UTF-8 bytes, the rest stays readable. Lone surrogates, which UTF-8 has
no bytes for, become ``\udcXX`` escapes when text is cut.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

_PLAIN: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in "%+")
_ESCAPED: Final = re.compile(rb"(?:[\x20-\x24\x26-\x2a\x2c-\x7e]|%[0-9A-Fa-f]{2})*")


def _well_formed(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def cut_text(text: str, max_bytes: int) -> str:
    """Keep the beginning of a text: at most ``max_bytes`` of UTF-8, cut on a character's boundary.

    >>> cut_text("naive", 3)
    'nai'
    """
    return _well_formed(text)[: max(0, max_bytes)].decode("utf-8", "ignore")


def cut_tail(text: str, max_bytes: int) -> str:
    """Keep the end of a text: at most ``max_bytes`` of UTF-8, cut on a character's boundary.

    >>> cut_tail("naive", 3)
    'ive'
    """
    return _well_formed(text)[-max_bytes:].decode("utf-8", "ignore") if max_bytes > 0 else ""


def escape_text(text: str, max_bytes: int, also: str = "") -> str:
    """Cut a text and percent-encode it.

    Args:
        text: anything.
        max_bytes: bound before encoding; encoded it is at most three times as long.
        also: ASCII characters to encode besides.

    >>> escape_text("100% sure", 64)
    '100%25 sure'
    """
    plain = "".join(character for character in _PLAIN if character not in also) if also else _PLAIN
    return quote_from_bytes(cut_text(text, max_bytes).encode("utf-8"), safe=plain)


def unescape_text(raw: bytes) -> str | None:
    """Read percent-encoded text back; None where it is not that, or its bytes are not UTF-8."""
    if not _ESCAPED.fullmatch(raw):
        return None
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None

"""Keys, values and headers as text: JSON, UTF-8 or a hex dump, bounded in size.

Nothing here is markup: the templates escape all of it. JSON is indented but never rewritten: numbers, duplicate names
and escapes stay as they were sent.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_TEXT_BYTES: Final = 64 * 1_024
MAX_BINARY_BYTES: Final = 4 * 1_024
MAX_HEADER_CHARS: Final = 4 * 1_024

_MAX_DEPTH: Final = 64
_MAX_LAID_OUT_CHARS: Final = 4 * MAX_TEXT_BYTES
_BYTES_PER_LINE: Final = 16
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Kind(StrEnum):
    """What a value looks like."""

    NULL = "null"
    EMPTY = "empty"
    JSON = "json"
    TEXT = "text"
    BINARY = "binary"
    HIDDEN = "hidden"
    """The reader may not see it."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A key or a value for people and programs."""

    kind: Kind
    size_bytes: int
    """Whole size; 0 for null."""
    content: bytes
    """Its first bytes: everything unless ``truncated``."""
    text: str
    """Those as text; empty for null, empty and binary."""
    decoded: Payload | None = None
    """What the user's decoder makes of it; None: it was not asked, or leaves it as it is."""
    problem: str = ""
    """Why the decoder has failed."""

    @property
    def truncated(self) -> bool:
        return len(self.content) < self.size_bytes

    @property
    def laid_out(self) -> str:
        """JSON indented, text as it is, anything else as a hex dump."""
        if self.kind is Kind.JSON:
            return lay_out_json(self.text)
        return hex_dump(self.content) if self.kind is Kind.BINARY else self.text

    @property
    def facts(self) -> dict[str, object]:
        """The same for programs: ``text`` where it is UTF-8, else ``base64``; and what the decoder makes of it."""
        facts: dict[str, object] = {
            "kind": self.kind.value,
            "size_bytes": self.size_bytes,
            "shown_bytes": len(self.content),
            "truncated": self.truncated,
        }
        if self.kind is Kind.BINARY:
            facts["base64"] = base64.b64encode(self.content).decode("ascii")
        elif self.kind not in (Kind.NULL, Kind.HIDDEN):
            facts["text"] = self.text
        if self.decoded is not None:
            facts["decoded"] = self.decoded.facts
        if self.problem:
            facts["problem"] = self.problem
        return facts


def payload_of(raw: bytes | None) -> Payload:
    """Return a key or value as it was sent, decoded by what it looks like; None is Kafka's null."""
    if raw is None:
        return Payload(Kind.NULL, 0, b"", "")
    if not raw:
        return Payload(Kind.EMPTY, 0, b"", "")
    content = raw[:MAX_TEXT_BYTES]
    text = utf8_text(content, cut=len(content) < len(raw))
    if text is None:
        return Payload(Kind.BINARY, len(raw), raw[:MAX_BINARY_BYTES], "")
    whole = len(content) == len(raw)
    return Payload(Kind.JSON if whole and _is_json(text) else Kind.TEXT, len(raw), content, text)


def utf8_text(content: bytes, *, cut: bool) -> str | None:
    """Return bytes as text, less a character that was `cut` at the end; None: they are no UTF-8, or have a null."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.reason != "unexpected end of data":
            return None
        text = content[: error.start].decode("utf-8")
    return None if "\x00" in text else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def lay_out_json(text: str) -> str:
    """Indent valid JSON; only space between tokens changes. Deeply nested or very long texts come back as they were.

    >>> print(lay_out_json('{"a":[1.10,{}]}'))
    {
      "a": [
        1.10,
        {}
      ]
    }
    """
    pieces: list[str] = []
    depth = size = 0
    after_opening = False
    for match in _TOKEN.finditer(text):
        mark = match.group()
        closing = mark in "}]"
        depth -= closing
        new_line = "\n" + "  " * depth
        if mark == ",":
            piece = mark + new_line
        elif mark == ":":
            piece = ": "
        else:
            piece = new_line + mark if after_opening != closing else mark
        after_opening = mark in "{["
        depth += after_opening
        size += len(piece)
        if depth > _MAX_DEPTH or size > _MAX_LAID_OUT_CHARS:
            return text
        pieces.append(piece)
    return "".join(pieces)


def hex_dump(raw: bytes) -> str:
    r"""Write bytes as lines of offset, 16 bytes in hex, and the printable ASCII among them.

    >>> print(hex_dump(b"hi\xff"))
    00000000  68 69 ff                                         |hi.|
    """
    lines = []
    for start in range(0, len(raw), _BYTES_PER_LINE):
        chunk = raw[start : start + _BYTES_PER_LINE]
        plain = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in chunk)
        lines.append(f"{start:08x}  {chunk.hex(' '):<47}  |{plain}|")
    return "\n".join(lines)


def header_text(raw: bytes | None) -> str | None:
    """Return a header's value as text: UTF-8, else ``0x`` and hex; cut where it is long. None is null."""
    if raw is None:
        return None
    text = utf8_text(raw, cut=False)
    if text is None:
        text = f"0x{raw.hex()}"
    return text if len(text) <= MAX_HEADER_CHARS else f"{text[:MAX_HEADER_CHARS]}... ({len(raw)} bytes)"


def printable(text: str) -> str:
    r"""Show characters that would hide or reorder others: control, bidirectional and lone surrogate ones as escapes.

    Line feeds and tabs stay.

    >>> printable("a\x00b")
    'a\\x00b'
    """
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def escaped_json(text: str) -> str:
    r"""Escape the same characters in JSON, which stays JSON.

    >>> escaped_json('"a\x9b"')
    '"a\\u009b"'
    """
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)

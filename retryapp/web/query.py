"""What a request asks for, checked: page size, cursors, partition, format.

Cursors are opaque to a reader and mean a place, not a page number, so that a list may change while it is read:

* ``after`` of the waiting records is a row key in hex;
* ``before`` of the dead letters names an offset for each partition, as ``0-118.3-97``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.web.errors import bad_parameter

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
MAX_REFRESH_S: Final = 3_600
_MAX_DIGITS: Final = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The query of a request.

    Raises:
        PageError: 400, from ``question_of``, where a parameter cannot be used; the message names it.
    """

    as_json: bool = False
    """``format=json``: facts for programs."""

    limit: int = DEFAULT_LIMIT
    """Rows on a page, from 1 to ``MAX_LIMIT``."""

    partition: int | None = None
    """Only this partition."""

    reason: str | None = None
    """Only dead letters with this reason."""

    after: bytes | None = None
    """Waiting records after this row key."""

    before: Mapping[int, int] | None = None
    """Dead letters below these offsets, by partition; None is from the newest on."""

    refresh_s: int | None = None
    """Ask the browser to load the page again after so many seconds."""

    routed: bool = False
    """Another worker sent the request here: do not send it on again."""


def question_of(query: Mapping[str, str]) -> Question:
    """Check the parameters of a request; empty ones (of a form) count as absent.

    Raises:
        PageError: 400, naming the parameter and what was expected.
    """
    given = {name: value for name, value in query.items() if value}
    form = given.get("format", "html")
    if form not in {"html", "json"}:
        raise bad_parameter("format", form, "html or json")
    return Question(
        as_json=form == "json",
        limit=_number(given, "limit", 1, MAX_LIMIT) or DEFAULT_LIMIT,
        partition=_number(given, "partition", 0, 2**31 - 1),
        reason=given.get("reason"),
        after=_row_key(given),
        before=_offsets(given),
        refresh_s=_number(given, "refresh", 1, MAX_REFRESH_S),
        routed="routed" in given,
    )


def is_number(text: str) -> bool:
    """Tell whether a text is a whole number in ASCII digits that no topic's numbers exceed."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _number(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not is_number(text) or not least <= int(text) <= most:
        raise bad_parameter(name, text, f"a whole number from {least} to {most}")
    return int(text)


def _row_key(given: Mapping[str, str]) -> bytes | None:
    text = given.get("after")
    if text is None:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != ROW_KEY_BYTES:
        raise bad_parameter("after", text, "a cursor as the link to the next page has it")
    return key


def _offsets(given: Mapping[str, str]) -> dict[int, int] | None:
    text = given.get("before")
    if text is None:
        return None
    offsets: dict[int, int] = {}
    for pair in text.split("."):
        partition, _, offset = pair.partition("-")
        if not (is_number(partition) and is_number(offset)):
            raise bad_parameter("before", text, "a cursor as the link to the next page has it")
        offsets[int(partition)] = int(offset)
    return offsets


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Write a cursor of the dead letters; ``question_of`` reads it back.

    >>> offsets_text({3: 97, 0: 118})
    '0-118.3-97'
    """
    return ".".join(f"{partition}-{offset}" for partition, offset in sorted(offsets.items()))

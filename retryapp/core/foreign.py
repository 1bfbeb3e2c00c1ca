"""The user's own headers on our topics: separated from ours, renamed in transit, and restored.

A header with one of our names gets the prefix ``SHIELD``. A name that is not UTF-8 (lenient readers hold its bytes as
lone surrogates) cannot be sent: it is percent-encoded after the prefix ``ESCAPED``, with the first prefix if any.
"""

from __future__ import annotations

from urllib.parse import quote_from_bytes, unquote_to_bytes

from retryapp.core.headers import ESCAPED, OUR_HEADERS, RETRY_ORIGIN, RETRY_VERSION, SHIELD
from retryapp.core.record import Headers


def split_headers(headers: Headers) -> tuple[Headers, Headers]:
    """Return foreign headers (shielded ones too) and ours, in their order, duplicates and null values kept."""
    foreign: list[tuple[str, bytes | None]] = []
    ours: list[tuple[str, bytes | None]] = []
    for pair in headers:
        (ours if pair[0] in OUR_HEADERS else foreign).append(pair)
    return tuple(foreign), tuple(ours)


def carries_metadata(headers: Headers) -> bool:
    """Tell whether retryapp wrote the headers, readable or not: ``retry-version`` and ``retry-origin`` exist."""
    names = {name for name, _ in headers}
    return RETRY_VERSION in names and RETRY_ORIGIN in names


def strip(headers: Headers) -> Headers:
    """Return the headers of a record of the *main* topic as the handler should see them.

    A dead letter copied to the main topic is a new record: our headers are removed and shielded names restored. A
    user's own header that merely has one of our names stays.
    """
    return unshield(split_headers(headers)[0]) if carries_metadata(headers) else headers


def shield(headers: Headers) -> Headers:
    """Rename the user's headers that cannot travel under their names; ``unshield`` restores them."""
    return tuple((_travelling(name), value) for name, value in headers)


def unshield(headers: Headers) -> Headers:
    return tuple((_own(name), value) for name, value in headers)


def escape_names(headers: Headers) -> Headers:
    """Escape the names that no client can send, and nothing else; doing it twice changes nothing."""
    for name, _ in headers:
        if not name.isascii():
            return tuple((_sendable(name), value) for name, value in headers)
    return headers


def _travelling(name: str) -> str:
    if name in OUR_HEADERS or name.startswith((SHIELD, ESCAPED)):
        name = SHIELD + name
    return name if name.isascii() else _sendable(name)


def _sendable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        return ESCAPED + quote_from_bytes(name_bytes(name), safe="")
    return name


def _own(name: str) -> str:
    if name.startswith(ESCAPED):
        name = unquote_to_bytes(name_bytes(name)[len(ESCAPED) :]).decode("utf-8", "surrogateescape")
    return name.removeprefix(SHIELD)


def name_bytes(name: str) -> bytes:
    """Return a name's bytes, those of lone surrogates that no reader makes included."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass")

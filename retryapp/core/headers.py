"""The ``retry-*`` headers: names, meaning and byte codec.

Invariants:

* Every value is ASCII text. Free text is percent-encoded (RFC 3986: UTF-8 bytes as ``%C3%A9``; ``%``, ``+``, control
  characters and everything outside ASCII are encoded, the rest stays readable), so any URL decoder reads it back.
* The size is bounded by ``MAX_METADATA_BYTES``, whatever a handler raises: text is cut, the history keeps its last
  entries.
* Each header stands at most once. Headers of ours that are missing, doubled, null or unreadable are damage: they raise
  ``DamagedMetadataError``, never reset a counter and never mean "no delay".
* A record either waits (``retry-due-ms``) or is dead (``retry-reason``); both or neither is damage.
* Only the names of ``OUR_HEADERS`` are ours. Another header that starts with ``retry-`` is the user's, or a newer
  version's, and passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from retryapp.core.errors import DamagedMetadataError, NewerFormatError
from retryapp.core.metadata import (
    FORMAT_VERSION,
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_HISTORY,
    MAX_HISTORY_TYPE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NAME_BYTES,
    MAX_TRACE_BYTES,
)
from retryapp.core.metadata import HistoryEntry as HistoryEntry
from retryapp.core.metadata import RetryMetadata as RetryMetadata
from retryapp.core.record import Headers, parse_origin
from retryapp.core.text import cut_tail, escape_text, unescape_text

RETRY_VERSION: Final = "retry-version"
RETRY_NULL_VALUE: Final = "retry-null-value"
RETRY_GROUP: Final = "retry-group"
RETRY_HANDLER: Final = "retry-handler"
RETRY_ORIGIN: Final = "retry-origin"
RETRY_ORIGIN_TIMESTAMP_MS: Final = "retry-origin-timestamp-ms"
RETRY_ATTEMPT: Final = "retry-attempt"
RETRY_DUE_MS: Final = "retry-due-ms"
RETRY_STARTED_MS: Final = "retry-started-ms"
RETRY_HOT_ATTEMPTS: Final = "retry-hot-attempts"
RETRY_POLICY: Final = "retry-policy"
RETRY_TIER: Final = "retry-tier"
RETRY_FIRST_FAILED_MS: Final = "retry-first-failed-ms"
RETRY_LAST_FAILED_MS: Final = "retry-last-failed-ms"
RETRY_ERROR_TYPE: Final = "retry-error-type"
RETRY_ERROR_MESSAGE: Final = "retry-error-message"
RETRY_ERROR_TRACE: Final = "retry-error-trace"
RETRY_REASON: Final = "retry-reason"
RETRY_ORIGINAL_REASON: Final = "retry-original-reason"
"""With reason ``too-large`` only: why the record died before it proved too large for the dead-letter topic."""
RETRY_FINGERPRINT: Final = "retry-fingerprint"
RETRY_HISTORY: Final = "retry-history"
RETRY_REPLAY_ID: Final = "retry-replay-id"
RETRY_REPLAYS: Final = "retry-replays"

OUR_HEADERS: Final = frozenset(
    {
        RETRY_VERSION, RETRY_NULL_VALUE, RETRY_GROUP, RETRY_HANDLER, RETRY_ORIGIN, RETRY_ORIGIN_TIMESTAMP_MS,
        RETRY_ATTEMPT, RETRY_DUE_MS, RETRY_STARTED_MS, RETRY_HOT_ATTEMPTS, RETRY_POLICY, RETRY_TIER,
        RETRY_FIRST_FAILED_MS, RETRY_LAST_FAILED_MS, RETRY_ERROR_TYPE, RETRY_ERROR_MESSAGE, RETRY_ERROR_TRACE,
        RETRY_REASON, RETRY_ORIGINAL_REASON, RETRY_FINGERPRINT, RETRY_HISTORY, RETRY_REPLAY_ID, RETRY_REPLAYS,
    }
)  # fmt: skip
"""All names that are ours in format version 1."""

SHIELD: Final = "retry-foreign-"
"""Prefix put before a user's own header whose name is one of ours, while the record travels on our topics."""

ESCAPED: Final = "retry-escaped-"
"""The same before a user's header name that is not UTF-8, whose bytes follow percent-encoded (RFC 3986)."""

_DIGITS: Final = re.compile(rb"0|[1-9][0-9]{0,17}")


def split_headers(headers: Headers) -> tuple[Headers, Headers]:
    """Part headers into foreign ones and ours, each in their order.

    Returns:
        ``(foreign, ours)``; foreign headers keep duplicates and null values, and may be shielded (see ``shield``).
    """
    foreign = tuple(pair for pair in headers if pair[0] not in OUR_HEADERS)
    ours = tuple(pair for pair in headers if pair[0] in OUR_HEADERS)
    return foreign, ours


def carries_metadata(headers: Headers) -> bool:
    """Tell whether retryapp wrote the headers, readable or not: ``retry-version`` and ``retry-origin`` are there."""
    names = {name for name, _ in headers}
    return RETRY_VERSION in names and RETRY_ORIGIN in names


def strip(headers: Headers) -> Headers:
    """Return the headers of a record of the *main* topic as the handler should see them.

    A dead letter that someone copied to the main topic carries our headers; it is a new record, so they are taken off
    and shielded names are given back. A user's own header that merely has one of our names stays.
    """
    return unshield(split_headers(headers)[0]) if carries_metadata(headers) else headers


def shield(headers: Headers) -> Headers:
    """Rename the user's headers that could not travel under their names; ``unshield`` gives the names back.

    Those that would be mistaken for ours get a prefix. A name that is not UTF-8 (lenient readers hold its bytes as lone
    surrogates) is what no client can send: it is percent-encoded behind a prefix of its own.
    """
    return tuple((_travelling(name), value) for name, value in headers)


def unshield(headers: Headers) -> Headers:
    """Give shielded headers their own names again."""
    return tuple((_own(name), value) for name, value in headers)


def _travelling(name: str) -> str:
    if name in OUR_HEADERS or name.startswith((SHIELD, ESCAPED)):
        return SHIELD + name
    if name.isascii():
        return name
    try:
        name.encode()
    except UnicodeEncodeError:
        return ESCAPED + quote_from_bytes(name.encode("utf-8", "surrogateescape"), safe="")
    return name


def _own(name: str) -> str:
    if name.startswith(ESCAPED):
        return unquote_to_bytes(name.removeprefix(ESCAPED)).decode("utf-8", "surrogateescape")
    return name.removeprefix(SHIELD)


def _check(metadata: RetryMetadata) -> None:
    """Refuse what must never be written or believed."""
    _check_range(RETRY_ATTEMPT, metadata.attempt, 0 if metadata.replays else 1, MAX_COUNT)
    _check_range(RETRY_HOT_ATTEMPTS, metadata.hot_attempts, 1, MAX_COUNT)
    _check_range(RETRY_REPLAYS, metadata.replays, 0, MAX_COUNT)
    _check_range(RETRY_ORIGIN_TIMESTAMP_MS, metadata.origin_timestamp_ms, -1, MAX_EPOCH_MS)
    for header, instant in (
        (RETRY_STARTED_MS, metadata.started_ms),
        (RETRY_FIRST_FAILED_MS, metadata.first_failed_ms),
        (RETRY_LAST_FAILED_MS, metadata.last_failed_ms),
        (RETRY_DUE_MS, metadata.due_at_ms),
    ):
        if instant is not None:
            _check_range(header, instant, 0, MAX_EPOCH_MS)
    for header, name in (
        (RETRY_GROUP, metadata.group),
        (RETRY_HANDLER, metadata.handler),
        (RETRY_POLICY, metadata.policy),
        (RETRY_ERROR_TYPE, metadata.error_type),
        (RETRY_FINGERPRINT, metadata.fingerprint),
    ):
        if not name:
            raise DamagedMetadataError(header, name, "is empty")
    if (metadata.due_at_ms is None) == (metadata.reason is None):
        raise DamagedMetadataError(
            RETRY_DUE_MS,
            metadata.due_at_ms,
            f"a record either waits or is dead, and {RETRY_REASON}={metadata.reason!r}",
        )


def _check_range(header: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise DamagedMetadataError(header, value, f"expected a whole number from {least} to {most}")


def encode_metadata(metadata: RetryMetadata) -> Headers:
    """Write our headers, each once, in a fixed order; text and history beyond their bounds are cut.

    Args:
        metadata: what is to be said.

    Returns:
        At most ``len(OUR_HEADERS)`` pairs of ASCII values, together at most ``MAX_METADATA_BYTES``.

    Raises:
        DamagedMetadataError: a number is out of range, or the record both waits and is dead, or neither; names the
            header.
    """
    _check(metadata)
    return tuple((name, value.encode("ascii")) for name, value in _texts(metadata))


def _texts(md: RetryMetadata) -> Iterator[tuple[str, str]]:
    yield RETRY_VERSION, str(md.version)
    if md.null_value:
        yield RETRY_NULL_VALUE, "1"
    yield RETRY_GROUP, escape_text(md.group, MAX_NAME_BYTES)
    yield RETRY_HANDLER, escape_text(md.handler, MAX_NAME_BYTES)
    yield RETRY_ORIGIN, md.origin.text
    yield RETRY_ORIGIN_TIMESTAMP_MS, str(md.origin_timestamp_ms)
    yield RETRY_ATTEMPT, str(md.attempt)
    if md.due_at_ms is not None:
        yield RETRY_DUE_MS, str(md.due_at_ms)
    yield RETRY_STARTED_MS, str(md.started_ms)
    if md.hot_attempts > 1:
        yield RETRY_HOT_ATTEMPTS, str(md.hot_attempts)
    yield RETRY_POLICY, escape_text(md.policy, MAX_NAME_BYTES)
    if md.tier is not None:
        yield RETRY_TIER, escape_text(md.tier, MAX_NAME_BYTES)
    yield RETRY_FIRST_FAILED_MS, str(md.first_failed_ms)
    yield RETRY_LAST_FAILED_MS, str(md.last_failed_ms)
    yield RETRY_ERROR_TYPE, escape_text(md.error_type, MAX_NAME_BYTES)
    yield RETRY_ERROR_MESSAGE, escape_text(md.error_message, MAX_MESSAGE_BYTES)
    if md.error_trace is not None:
        yield RETRY_ERROR_TRACE, escape_text(cut_tail(md.error_trace, MAX_TRACE_BYTES), MAX_TRACE_BYTES)
    if md.reason is not None:
        yield RETRY_REASON, escape_text(md.reason, MAX_NAME_BYTES)
    if md.original_reason is not None:
        yield RETRY_ORIGINAL_REASON, escape_text(md.original_reason, MAX_NAME_BYTES)
    yield RETRY_FINGERPRINT, escape_text(md.fingerprint, MAX_NAME_BYTES)
    if md.history:
        yield RETRY_HISTORY, ",".join(_history_text(entry) for entry in md.history[-MAX_HISTORY:])
    if md.replay_id is not None:
        yield RETRY_REPLAY_ID, escape_text(md.replay_id, MAX_NAME_BYTES)
    if md.replays:
        yield RETRY_REPLAYS, str(md.replays)


def _history_text(entry: HistoryEntry) -> str:
    return f"{entry.attempt}:{entry.failed_ms}:{escape_text(entry.error_type, MAX_HISTORY_TYPE_BYTES, also=',:')}"


def decode_metadata(headers: Headers) -> RetryMetadata | None:
    """Read our headers.

    Args:
        headers: all headers of a record; foreign ones are ignored.

    Returns:
        What they say, or None when there is not one header of ours.

    Raises:
        NewerFormatError: a newer retryapp wrote them.
        DamagedMetadataError: one is missing, doubled, null or unreadable; names the header and its value.
    """
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name not in OUR_HEADERS:
            continue
        if name in found:
            raise DamagedMetadataError(name, value, f"stands more than once; the first says {found[name]!r}")
        if value is None:
            raise DamagedMetadataError(name, None, "is null")
        found[name] = value
    if not found:
        return None
    metadata = HeaderReader(found).metadata()
    _check(metadata)
    return metadata


class HeaderReader:
    """Reads our headers one by one; every refusal is a ``DamagedMetadataError`` that names the header."""

    def __init__(self, found: dict[str, bytes]) -> None:
        self.found = found

    def metadata(self) -> RetryMetadata:
        """Read everything."""
        version = self.number(RETRY_VERSION)
        if version > FORMAT_VERSION:
            raise NewerFormatError(RETRY_VERSION, version, FORMAT_VERSION)
        if version < 1:
            raise DamagedMetadataError(RETRY_VERSION, version, "the first version is 1")
        return RetryMetadata(
            version=version,
            group=self.name(RETRY_GROUP),
            handler=self.name(RETRY_HANDLER),
            origin=parse_origin(self.name(RETRY_ORIGIN)),
            origin_timestamp_ms=self.timestamp(RETRY_ORIGIN_TIMESTAMP_MS),
            attempt=self.number(RETRY_ATTEMPT),
            due_at_ms=self.number(RETRY_DUE_MS) if RETRY_DUE_MS in self.found else None,
            started_ms=self.number(RETRY_STARTED_MS),
            hot_attempts=self.number(RETRY_HOT_ATTEMPTS) if RETRY_HOT_ATTEMPTS in self.found else 1,
            policy=self.name(RETRY_POLICY),
            tier=self.optional_name(RETRY_TIER),
            first_failed_ms=self.number(RETRY_FIRST_FAILED_MS),
            last_failed_ms=self.number(RETRY_LAST_FAILED_MS),
            error_type=self.name(RETRY_ERROR_TYPE),
            error_message=self.text(RETRY_ERROR_MESSAGE),
            error_trace=self.text(RETRY_ERROR_TRACE) if RETRY_ERROR_TRACE in self.found else None,
            reason=self.optional_name(RETRY_REASON),
            original_reason=self.optional_name(RETRY_ORIGINAL_REASON),
            fingerprint=self.name(RETRY_FINGERPRINT),
            history=self.history(),
            replay_id=self.optional_name(RETRY_REPLAY_ID),
            replays=self.number(RETRY_REPLAYS) if RETRY_REPLAYS in self.found else 0,
            null_value=self.flag(RETRY_NULL_VALUE),
        )

    def raw(self, header: str) -> bytes:
        """Return a header that has to be there."""
        value = self.found.get(header)
        if value is None:
            raise DamagedMetadataError(header, None, "is missing")
        return value

    def number(self, header: str) -> int:
        """Read a whole number, not negative."""
        return _number(header, self.raw(header))

    def timestamp(self, header: str) -> int:
        """Read an instant, or -1 for none."""
        return -1 if self.raw(header) == b"-1" else self.number(header)

    def flag(self, header: str) -> bool:
        """Tell whether a mark is there."""
        value = self.found.get(header)
        if value not in (None, b"1"):
            raise DamagedMetadataError(header, value, "expected 1, or no such header")
        return value is not None

    def text(self, header: str) -> str:
        """Read text, maybe empty."""
        return _text(header, self.raw(header))

    def name(self, header: str) -> str:
        """Read text that is not empty."""
        text = self.text(header)
        if not text:
            raise DamagedMetadataError(header, "", "is empty")
        return text

    def optional_name(self, header: str) -> str | None:
        """Read text that is not empty, or None where the header is missing."""
        return self.name(header) if header in self.found else None

    def history(self) -> tuple[HistoryEntry, ...]:
        """Read the last failed attempts, oldest first; none where the header is missing."""
        value = self.found.get(RETRY_HISTORY)
        if value is None:
            return ()
        entries = []
        for part in value.split(b","):
            fields = part.split(b":")
            if len(fields) != 3:
                raise DamagedMetadataError(RETRY_HISTORY, value, "expected attempt:failed_ms:type, parted by commas")
            attempt, failed_ms = (_number(RETRY_HISTORY, field) for field in fields[:2])
            entries.append(HistoryEntry(attempt, failed_ms, _text(RETRY_HISTORY, fields[2])))
        return tuple(entries[-MAX_HISTORY:])


def _number(header: str, value: bytes) -> int:
    if not _DIGITS.fullmatch(value):
        raise DamagedMetadataError(header, value, "expected a whole number in ASCII digits")
    return int(value)


def _text(header: str, value: bytes) -> str:
    text = unescape_text(value)
    if text is None:
        raise DamagedMetadataError(header, value, "expected percent-encoded ASCII text")
    return text

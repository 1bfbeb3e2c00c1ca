"""The ``retry-*`` headers: names, meaning and byte codec.

Invariants:

* Every value is ASCII text. Free text is percent-encoded (see ``text.py``), so any URL decoder reads it.
* The size is at most ``MAX_METADATA_BYTES``: text is cut, the history keeps its last entries.
* Each header occurs at most once. Headers of ours that are missing, doubled, null or unreadable raise
  ``DamagedMetadataError``; they never reset a counter and never mean "no delay".
* A record either waits (``retry-due-ms``) or is dead (``retry-reason``); both or neither is damage.
* Only the names of ``OUR_HEADERS`` are ours. Any other header that starts with ``retry-`` passes unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

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
    HistoryEntry,
    RetryMetadata,
)
from retryapp.core.record import Headers, Origin, failure_id, parse_failure_id, parse_origin
from retryapp.core.text import cut_tail, escape_text, unescape_text

RETRY_VERSION: Final = "retry-version"
RETRY_NULL_VALUE: Final = "retry-null-value"
RETRY_NO_PAYLOAD: Final = "retry-no-payload"
"""Without value and foreign headers: the pending table and an earlier copy have them, or the main topic."""
RETRY_GROUP: Final = "retry-group"
RETRY_HANDLER: Final = "retry-handler"
RETRY_ORIGIN: Final = "retry-origin"
RETRY_ORIGIN_TIMESTAMP_MS: Final = "retry-origin-timestamp-ms"
RETRY_ATTEMPT: Final = "retry-attempt"
RETRY_DELIVERY: Final = "retry-delivery"
"""Written only where it differs from the attempt."""
RETRY_DUE_MS: Final = "retry-due-ms"
RETRY_STARTED_MS: Final = "retry-started-ms"
RETRY_WORKER: Final = "retry-worker"
RETRY_HOT_ATTEMPTS: Final = "retry-hot-attempts"
"""Tries of the delivery that ended last; written only where there was more than one."""
RETRY_POLICY: Final = "retry-policy"
RETRY_TIER: Final = "retry-tier"
RETRY_RULE: Final = "retry-rule"
RETRY_RULE_FAILURES: Final = "retry-rule-failures"
"""Written only where it differs from the attempt."""
RETRY_FIRST_FAILED_MS: Final = "retry-first-failed-ms"
RETRY_COUNTED_FROM_MS: Final = "retry-counted-from-ms"
"""Written only where it is not the time of the first failure."""
RETRY_LAST_FAILED_MS: Final = "retry-last-failed-ms"
RETRY_ERROR_TYPE: Final = "retry-error-type"
RETRY_ERROR_MESSAGE: Final = "retry-error-message"
RETRY_ERROR_TRACE: Final = "retry-error-trace"
RETRY_REASON: Final = "retry-reason"
RETRY_ORIGINAL_REASON: Final = "retry-original-reason"
RETRY_FINGERPRINT: Final = "retry-fingerprint"
RETRY_HISTORY: Final = "retry-history"
RETRY_REPLAY_ID: Final = "retry-replay-id"
RETRY_LETTER: Final = "retry-letter"
RETRY_EDITED: Final = "retry-edited"
RETRY_MARK: Final = "retry-mark"
"""Only on dead-letter topics: the record is no letter, but says what became of one (``core.control``)."""
RETRY_REPLAYS: Final = "retry-replays"

OUR_HEADERS: Final = frozenset(
    {
        RETRY_VERSION, RETRY_NULL_VALUE, RETRY_GROUP, RETRY_HANDLER, RETRY_ORIGIN, RETRY_ORIGIN_TIMESTAMP_MS,
        RETRY_ATTEMPT, RETRY_DELIVERY, RETRY_DUE_MS, RETRY_STARTED_MS, RETRY_HOT_ATTEMPTS, RETRY_POLICY, RETRY_TIER,
        RETRY_RULE, RETRY_RULE_FAILURES, RETRY_FIRST_FAILED_MS, RETRY_LAST_FAILED_MS, RETRY_ERROR_TYPE,
        RETRY_ERROR_MESSAGE, RETRY_ERROR_TRACE, RETRY_REASON, RETRY_ORIGINAL_REASON, RETRY_FINGERPRINT, RETRY_HISTORY,
        RETRY_REPLAY_ID, RETRY_REPLAYS, RETRY_NO_PAYLOAD, RETRY_LETTER, RETRY_EDITED, RETRY_MARK, RETRY_COUNTED_FROM_MS,
        RETRY_WORKER,
    }
)  # fmt: skip
"""All names that are ours in format version 1."""

SHIELD: Final = "retry-foreign-"
"""Prefix put before a user's own header whose name is one of ours, while the record travels on our topics."""

ESCAPED: Final = "retry-escaped-"
"""The same before a user's header name that is not UTF-8, whose bytes follow percent-encoded (RFC 3986)."""

_NAMES_OF_A_FAILURE: Final = frozenset({RETRY_GROUP, RETRY_ORIGIN})
_MAX_DIGITS: Final = 18
_SHORT_CHARS: Final = 80
"""Longest text whose header is remembered."""
_ZERO: Final = ord("0")


def _check(metadata: RetryMetadata) -> None:
    unspent = metadata.delivery or metadata.replays or metadata.held
    for header, value, least, most in (
        (RETRY_ATTEMPT, metadata.attempt, 0 if unspent else 1, MAX_COUNT),
        (RETRY_DELIVERY, metadata.delivery, metadata.attempt, MAX_COUNT),
        (RETRY_RULE_FAILURES, metadata.rule_failures, -1, MAX_COUNT),
        (RETRY_HOT_ATTEMPTS, metadata.hot_attempts, 1, MAX_COUNT),
        (RETRY_REPLAYS, metadata.replays, 0, MAX_COUNT),
        (RETRY_EDITED, metadata.edited or 0, 0, MAX_COUNT),
        (RETRY_ORIGIN_TIMESTAMP_MS, metadata.origin_timestamp_ms, -1, MAX_EPOCH_MS),
        (RETRY_STARTED_MS, metadata.started_ms, 0, MAX_EPOCH_MS),
        (RETRY_FIRST_FAILED_MS, metadata.first_failed_ms, 0, MAX_EPOCH_MS),
        (RETRY_COUNTED_FROM_MS, metadata.counted_from_ms or 0, 0, MAX_EPOCH_MS),
        (RETRY_LAST_FAILED_MS, metadata.last_failed_ms, 0, MAX_EPOCH_MS),
        (RETRY_DUE_MS, 0 if metadata.due_at_ms is None else metadata.due_at_ms, 0, MAX_EPOCH_MS),
    ):
        if not least <= value <= most:
            raise DamagedMetadataError(header, f"expected a whole number from {least} to {most}")
    if (metadata.due_at_ms is None) == (metadata.reason is None):
        problem = f"a record either waits or is dead, and {RETRY_REASON}={metadata.reason!r}"
        raise DamagedMetadataError(RETRY_DUE_MS, problem)


@lru_cache(1_024)
def _short(header: str, text: str, max_bytes: int) -> tuple[str, bytes]:
    return header, escape_text(text, max_bytes)


def _text_pair(header: str, text: str, max_bytes: int = MAX_NAME_BYTES) -> tuple[str, bytes]:
    """Return a header of ours; those of short texts, most of them alike in all records, are made once."""
    return (_short if len(text) <= _SHORT_CHARS else _short.__wrapped__)(header, text, max_bytes)


def _name_pair(header: str, text: str) -> tuple[str, bytes]:
    if not text:
        raise DamagedMetadataError(header, "is empty")
    return _text_pair(header, text)


@lru_cache(1_024)
def _count_pair(header: str, count: int) -> tuple[str, bytes]:
    return header, b"%d" % count


def encode_metadata(metadata: RetryMetadata) -> Headers:
    """Encode our headers in a fixed order, together at most ``MAX_METADATA_BYTES``.

    Raises:
        DamagedMetadataError: a number is out of range, or the record both waits and is dead, or neither.
    """
    _check(metadata)
    return tuple(_pairs(metadata))


def _pairs(md: RetryMetadata) -> Iterator[tuple[str, bytes]]:
    yield _count_pair(RETRY_VERSION, md.version)
    if md.null_value:
        yield RETRY_NULL_VALUE, b"1"
    if md.no_payload:
        yield RETRY_NO_PAYLOAD, b"1"
    yield _name_pair(RETRY_GROUP, md.group)
    yield _name_pair(RETRY_HANDLER, md.handler)
    yield RETRY_ORIGIN, md.origin.text.encode("ascii")
    yield RETRY_ORIGIN_TIMESTAMP_MS, b"%d" % md.origin_timestamp_ms
    yield _count_pair(RETRY_ATTEMPT, md.attempt)
    if md.delivery != md.attempt:
        yield _count_pair(RETRY_DELIVERY, md.delivery)
    if md.hot_attempts > 1:
        yield _count_pair(RETRY_HOT_ATTEMPTS, md.hot_attempts)
    if md.due_at_ms is not None:
        yield RETRY_DUE_MS, b"%d" % md.due_at_ms
    yield RETRY_STARTED_MS, b"%d" % md.started_ms
    if md.worker is not None:
        yield _text_pair(RETRY_WORKER, md.worker)
    yield _name_pair(RETRY_POLICY, md.policy)
    if md.tier is not None:
        yield _text_pair(RETRY_TIER, md.tier)
    if md.rule is not None:
        yield _text_pair(RETRY_RULE, md.rule)
    if md.rule_failures >= 0:
        yield _count_pair(RETRY_RULE_FAILURES, md.rule_failures)
    yield RETRY_FIRST_FAILED_MS, b"%d" % md.first_failed_ms
    if md.counted_from_ms is not None:
        yield RETRY_COUNTED_FROM_MS, b"%d" % md.counted_from_ms
    yield RETRY_LAST_FAILED_MS, b"%d" % md.last_failed_ms
    yield _name_pair(RETRY_ERROR_TYPE, md.error_type)
    yield _text_pair(RETRY_ERROR_MESSAGE, md.error_message, MAX_MESSAGE_BYTES)
    if md.error_trace is not None:
        yield RETRY_ERROR_TRACE, escape_text(cut_tail(md.error_trace, MAX_TRACE_BYTES), MAX_TRACE_BYTES)
    if md.reason is not None:
        yield _text_pair(RETRY_REASON, md.reason)
    if md.original_reason is not None:
        yield _text_pair(RETRY_ORIGINAL_REASON, md.original_reason)
    yield _name_pair(RETRY_FINGERPRINT, md.fingerprint)
    if md.history:
        yield RETRY_HISTORY, b",".join([_history_entry(entry) for entry in md.history[-MAX_HISTORY:]])
    if md.replay_id is not None:
        yield _text_pair(RETRY_REPLAY_ID, md.replay_id)
    if md.replays:
        yield _count_pair(RETRY_REPLAYS, md.replays)
    if md.letter is not None:
        yield _text_pair(RETRY_LETTER, md.letter)
    if md.edited is not None:
        yield _count_pair(RETRY_EDITED, md.edited)


def _history_entry(entry: HistoryEntry) -> bytes:
    error_type = escape_text(entry.error_type, MAX_HISTORY_TYPE_BYTES, in_list=True)
    return b"%d:%d:%s" % (entry.attempt, entry.failed_ms, error_type)


def decode_metadata(headers: Headers) -> RetryMetadata | None:
    """Decode our headers; None without any of ours.

    Raises:
        NewerFormatError: a newer retryapp wrote them.
        DamagedMetadataError: one is missing, doubled, null or unreadable; names the header.
    """
    read = reader_of(headers)
    return None if read is None else read.metadata()


def reader_of(headers: Headers) -> HeaderReader | None:
    """Return what reads our headers one by one; None without any of ours. Raises as ``decode_metadata`` does."""
    ours, _ = parted(headers)
    return HeaderReader(ours) if ours else None


def parted(headers: Iterable[tuple[str, bytes | None]]) -> tuple[dict[str, bytes], Headers]:
    """Return our headers, for `HeaderReader`, and the others. Raises as ``decode_metadata`` does."""
    ours: dict[str, bytes] = {}
    others: list[tuple[str, bytes | None]] = []
    for pair in headers:
        name, value = pair
        if name not in OUR_HEADERS:
            others.append(pair)
            continue
        if name in ours:
            raise DamagedMetadataError(name, "occurs more than once")
        if value is None:
            raise DamagedMetadataError(name, "is null")
        ours[name] = value
    return ours, tuple(others)


def failure_id_of(headers: Headers) -> str | None:
    """Return a record's failure id, for look-ups: the other headers may be damaged. None where it is unreadable."""
    pairs = [(name, value) for name, value in headers if name in _NAMES_OF_A_FAILURE and value is not None]
    if len(pairs) != len(_NAMES_OF_A_FAILURE):
        return None
    try:
        name = HeaderReader(dict(pairs)).failure_id()
        parse_failure_id(name)  # a group with a slash makes none
    except DamagedMetadataError:
        return None
    return name


class HeaderReader:
    """Reads our headers one by one; raises ``DamagedMetadataError``, which names the header."""

    def __init__(self, found: dict[str, bytes]) -> None:
        self.found = found

    def version(self) -> int:
        """Read the version of the format, one that is known here."""
        version = self.number(RETRY_VERSION)
        if version > FORMAT_VERSION:
            raise NewerFormatError(RETRY_VERSION, version, FORMAT_VERSION)
        if version < 1:
            raise DamagedMetadataError(RETRY_VERSION, "the first version is 1")
        return version

    def metadata(self) -> RetryMetadata:
        version = self.version()
        metadata = RetryMetadata(
            version=version,
            group=self.name(RETRY_GROUP),
            handler=self.name(RETRY_HANDLER),
            origin=self.origin(),
            origin_timestamp_ms=self.timestamp(RETRY_ORIGIN_TIMESTAMP_MS),
            attempt=self.number(RETRY_ATTEMPT),
            delivery=self.delivery(),
            hot_attempts=self.number(RETRY_HOT_ATTEMPTS) if RETRY_HOT_ATTEMPTS in self.found else 1,
            due_at_ms=self.number(RETRY_DUE_MS) if RETRY_DUE_MS in self.found else None,
            started_ms=self.number(RETRY_STARTED_MS),
            worker=self.optional_name(RETRY_WORKER),
            policy=self.name(RETRY_POLICY),
            tier=self.optional_name(RETRY_TIER),
            rule=self.optional_name(RETRY_RULE),
            rule_failures=self.number(RETRY_RULE_FAILURES) if RETRY_RULE_FAILURES in self.found else -1,
            first_failed_ms=self.number(RETRY_FIRST_FAILED_MS),
            counted_from_ms=self.number(RETRY_COUNTED_FROM_MS) if RETRY_COUNTED_FROM_MS in self.found else None,
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
            letter=self.optional_name(RETRY_LETTER),
            edited=self.number(RETRY_EDITED) if RETRY_EDITED in self.found else None,
            null_value=self.flag(RETRY_NULL_VALUE),
            no_payload=self.flag(RETRY_NO_PAYLOAD),
        )
        _check(metadata)
        return metadata

    def number(self, header: str) -> int:
        """Read a whole number, not negative."""
        value = self.found.get(header)
        if value is None:
            raise _missing(header)
        return _number(header, value)

    def delivery(self) -> int:
        """Read the number of the delivery: the attempt's, unless it has a header of its own."""
        return self.number(RETRY_DELIVERY if RETRY_DELIVERY in self.found else RETRY_ATTEMPT)

    def timestamp(self, header: str) -> int:
        """Read an instant, or -1 for none."""
        return -1 if self.found.get(header) == b"-1" else self.number(header)

    def origin(self) -> Origin:
        """Read where the record was delivered first."""
        value = self.found.get(RETRY_ORIGIN)
        if value is None:
            raise _missing(RETRY_ORIGIN)
        return parse_origin(value.decode("ascii", "replace"))

    def failure_id(self) -> str:
        """Read which failure it is; the names of our groups are not longer than those in headers."""
        group = self.name(RETRY_GROUP)
        if len(group.encode()) > MAX_NAME_BYTES:
            raise DamagedMetadataError(RETRY_GROUP, f"is longer than {MAX_NAME_BYTES} bytes")
        return failure_id(group, self.origin())

    def flag(self, header: str) -> bool:
        value = self.found.get(header)
        if value not in (None, b"1"):
            raise DamagedMetadataError(header, "expected 1, or no such header")
        return value is not None

    def text(self, header: str) -> str:
        """Read text, maybe empty."""
        value = self.found.get(header)
        if value is None:
            raise _missing(header)
        return _text(header, value)

    def name(self, header: str) -> str:
        """Read text that is not empty."""
        text = self.text(header)
        if not text:
            raise DamagedMetadataError(header, "is empty")
        return text

    def optional_name(self, header: str) -> str | None:
        """Read text that is not empty, or None where the header is missing."""
        return self.name(header) if header in self.found else None

    def history(self) -> tuple[HistoryEntry, ...]:
        """Read the last failed attempts, oldest first; none where the header is missing."""
        value = self.found.get(RETRY_HISTORY)
        if value is None:
            return ()
        return tuple([_entry(part) for part in value.split(b",")[-MAX_HISTORY:]])


def _missing(header: str) -> DamagedMetadataError:
    return DamagedMetadataError(header, "is missing")


@lru_cache(MAX_HISTORY * 1_024)  # each copy of a record has the entries of the one before
def _entry(part: bytes) -> HistoryEntry:
    fields = part.split(b":")
    if len(fields) != 3:
        raise DamagedMetadataError(RETRY_HISTORY, "expected attempt:failed_ms:type")
    attempt, failed_ms = _number(RETRY_HISTORY, fields[0]), _number(RETRY_HISTORY, fields[1])
    return HistoryEntry(attempt, failed_ms, _text(RETRY_HISTORY, fields[2]))


def _number(header: str, value: bytes) -> int:
    if value.isdigit() and len(value) <= _MAX_DIGITS and (value[0] != _ZERO or len(value) == 1):
        return int(value)
    raise DamagedMetadataError(header, "expected a whole number in ASCII digits")


def _text(header: str, value: bytes) -> str:
    text = unescape_text(value)
    if text is None:
        raise DamagedMetadataError(header, "expected percent-encoded ASCII text")
    return text

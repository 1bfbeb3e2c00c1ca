"""What can still be said about a record whose ``retry-*`` headers are damaged.

Such a record is dead, reason ``damaged``: a counter that cannot be read is never set back and a due time that cannot be
read never means "now". Each header is tried by itself; what is readable is kept, what is not gets the neutral value
that is stated here. And what is said when even a failure cannot be told (`last_words`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError, RecordError
from retryapp.core.headers import (
    OUR_HEADERS,
    RETRY_ATTEMPT,
    RETRY_FIRST_FAILED_MS,
    RETRY_LAST_FAILED_MS,
    RETRY_NULL_VALUE,
    RETRY_ORIGIN_TIMESTAMP_MS,
    RETRY_REPLAY_ID,
    RETRY_REPLAYS,
    RETRY_STARTED_MS,
    HeaderReader,
)
from retryapp.core.metadata import MAX_COUNT, MAX_EPOCH_MS, NAMELESS, HistoryEntry, RetryMetadata, clamped
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.traces import qualified_name

_T = TypeVar("_T")

MAX_PLAIN_CHARS: Final = 200
"""Names and texts in a record's last words are cut to this."""

DAMAGED_FINGERPRINT: Final = "damaged"
"""All records with damaged metadata have one cause."""


def salvage(
    record: Record,
    error: RecordError,
    *,
    group: str,
    handler: str,
    topic_id: str,
    policy_digest: str,
    now_ms: int,
) -> RetryMetadata:
    """Return metadata for the dead letter of a record with damaged headers.

    Args:
        record: as read.
        error: what was found: damaged headers, or a batch that could not be read.
        group: the app id.
        handler: qualified name of the handler function.
        topic_id: short id of the handler's main topic; used only if the origin is unreadable: then the place where the
            damage was found takes its place, so that the dead letter still has coordinates that can be looked at.
        policy_digest: digest of the handler's policy.
        now_ms: the time, epoch milliseconds.

    Returns:
        Metadata with reason ``damaged``; the attempt is the header's, else the last of the history, else 1.
    """
    read = HeaderReader(_single(record.headers))
    history: tuple[HistoryEntry, ...] = _try(read.history, ())
    replays = _number(read, RETRY_REPLAYS, 0, MAX_COUNT)
    attempt = _number(read, RETRY_ATTEMPT, history[-1].attempt if history else 1, MAX_COUNT)
    now_ms = clamped(now_ms)
    here = Origin(record.topic, topic_id, record.partition, record.offset)
    return RetryMetadata(
        group=group,
        handler=handler or NAMELESS,
        origin=_try(read.origin, here),
        origin_timestamp_ms=clamped(_try(lambda: read.timestamp(RETRY_ORIGIN_TIMESTAMP_MS), record.timestamp_ms), -1),
        attempt=min(attempt if replays else max(1, attempt), MAX_COUNT),
        started_ms=_number(read, RETRY_STARTED_MS, now_ms, MAX_EPOCH_MS),
        policy=policy_digest,
        first_failed_ms=_number(read, RETRY_FIRST_FAILED_MS, now_ms, MAX_EPOCH_MS),
        last_failed_ms=_number(read, RETRY_LAST_FAILED_MS, now_ms, MAX_EPOCH_MS),
        error_type=qualified_name(type(error)) or NAMELESS,
        error_message=str(error),
        reason=DeadReason.DAMAGED.value,
        fingerprint=DAMAGED_FINGERPRINT,
        history=history,
        replay_id=_try(lambda: read.optional_name(RETRY_REPLAY_ID), None),
        replays=replays,
        null_value=_try(lambda: read.flag(RETRY_NULL_VALUE), False),
    )


def last_words(
    record: Record,
    error: BaseException,
    fault: BaseException,
    *,
    group: str,
    handler: str,
    topic_id: str,
    policy_digest: str,
    now_ms: int,
) -> RetryMetadata:
    """Return the least that a dead letter says, which can always be written: no text of anybody else's goes into it."""
    read = HeaderReader(_single(record.headers))
    now_ms = clamped(now_ms)
    return RetryMetadata(
        group=group,
        handler=_plain(lambda: handler),
        origin=_try(read.origin, Origin(record.topic, topic_id, record.partition, record.offset)),
        origin_timestamp_ms=clamped(_try(lambda: read.timestamp(RETRY_ORIGIN_TIMESTAMP_MS), record.timestamp_ms), -1),
        attempt=min(_number(read, RETRY_ATTEMPT, 0, MAX_COUNT) + 1, MAX_COUNT),
        started_ms=now_ms,
        policy=policy_digest,
        first_failed_ms=_number(read, RETRY_FIRST_FAILED_MS, now_ms, MAX_EPOCH_MS),
        last_failed_ms=now_ms,
        error_type=_plain(lambda: type(error).__name__),
        error_message="its failure could not be told: "
        f"{_plain(lambda: type(fault).__name__)}: {_plain(lambda: str(fault))}",
        reason=DeadReason.DAMAGED.value,
        fingerprint=DAMAGED_FINGERPRINT,
        replays=_number(read, RETRY_REPLAYS, 0, MAX_COUNT),
        null_value=_try(lambda: read.flag(RETRY_NULL_VALUE), False),
    )


def _plain(text_of: Callable[[], str]) -> str:
    """Return a text as printable ASCII, cut; whatever asking for it does."""
    try:
        return ascii(text_of()[:MAX_PLAIN_CHARS])[1:-1][:MAX_PLAIN_CHARS] or NAMELESS
    except Exception:  # noqa: BLE001 - a name or a text may be anybody's code
        return NAMELESS


def _single(headers: Headers) -> dict[str, bytes]:
    """Keep headers of ours that stand once and are not null: of two that contradict each other neither is believed."""
    ours = [(name, value) for name, value in headers if name in OUR_HEADERS]
    times = Counter(name for name, _ in ours)
    return {name: value for name, value in ours if value is not None and times[name] == 1}


def _number(read: HeaderReader, header: str, neutral: int, most: int) -> int:
    number = _try(lambda: read.number(header), neutral)
    return number if number <= most else neutral


def _try(read: Callable[[], _T], neutral: _T) -> _T:
    try:
        return read()
    except DamagedMetadataError:
        return neutral

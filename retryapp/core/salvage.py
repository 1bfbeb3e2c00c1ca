"""Metadata of a record whose ``retry-*`` headers are damaged, or whose failure cannot be encoded (`last_words`).

Such a record is dead, reason ``damaged``: an unreadable counter is never reset and an unreadable due time never means
"now". Each header is read by itself; an unreadable one gets a neutral value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError, RecordError
from retryapp.core.headers import (
    OUR_HEADERS,
    RETRY_ATTEMPT,
    RETRY_DELIVERY,
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
"""Bound of names and texts in `last_words`."""


def salvage(
    record: Record,
    error: RecordError,
    *,
    group: str,
    handler: str,
    topic_id: str,
    policy_digest: str,
    now_ms: int,
    counted: tuple[int, int] = (0, 0),
) -> RetryMetadata:
    """Return metadata for the dead letter of a record with damaged headers, or of a batch that could not be read.

    The attempt is the header's, else that of the row (`counted`: attempt and delivery; 0 where they are not known,
    impossible ones are not believed), else the last of the history, else 1; the delivery is the header's, else the
    row's, and no less. An unreadable origin becomes the coordinates of the damaged record.
    """
    read = HeaderReader(single(record.headers))
    base = _neutral(record, read, group=group, topic_id=topic_id, policy_digest=policy_digest, now_ms=clamped(now_ms))
    history: tuple[HistoryEntry, ...] = readable(read.history, ())
    counted = counted if counted[0] <= counted[1] <= MAX_COUNT else (0, 0)
    last = counted[0] if counted[1] else history[-1].attempt if history else 1
    attempt = _number(read, RETRY_ATTEMPT, last, MAX_COUNT)
    attempt = min(attempt if base.replays else max(1, attempt), MAX_COUNT)
    return replace(
        base,
        handler=handler or NAMELESS,
        attempt=attempt,
        delivery=max(attempt, _number(read, RETRY_DELIVERY, counted[1], MAX_COUNT)),
        started_ms=_number(read, RETRY_STARTED_MS, base.started_ms, MAX_EPOCH_MS),
        last_failed_ms=_number(read, RETRY_LAST_FAILED_MS, base.last_failed_ms, MAX_EPOCH_MS),
        error_type=qualified_name(type(error)) or NAMELESS,
        error_message=str(error),
        history=history,
        replay_id=readable(lambda: read.optional_name(RETRY_REPLAY_ID), None),
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
    """Return the minimal metadata of a dead letter, which can always be encoded: foreign text is cut to ASCII."""
    read = HeaderReader(single(record.headers))
    attempt = min(_number(read, RETRY_ATTEMPT, 0, MAX_COUNT) + 1, MAX_COUNT)
    reason = f"{_plain(lambda: type(fault).__name__)}: {_plain(lambda: str(fault))}"
    return replace(
        _neutral(record, read, group=group, topic_id=topic_id, policy_digest=policy_digest, now_ms=clamped(now_ms)),
        handler=_plain(lambda: handler),
        attempt=attempt,
        delivery=max(attempt, min(_number(read, RETRY_DELIVERY, 0, MAX_COUNT) + 1, MAX_COUNT)),
        error_type=_plain(lambda: type(error).__name__),
        error_message=f"its failure could not be encoded: {reason}",
    )


def _neutral(
    record: Record, read: HeaderReader, *, group: str, topic_id: str, policy_digest: str, now_ms: int
) -> RetryMetadata:
    here = Origin(record.topic, topic_id, record.partition, record.offset)
    return RetryMetadata(
        group=group,
        handler=NAMELESS,
        origin=readable(read.origin, here),
        origin_timestamp_ms=clamped(
            readable(lambda: read.timestamp(RETRY_ORIGIN_TIMESTAMP_MS), record.timestamp_ms), -1
        ),
        attempt=1,
        delivery=1,
        started_ms=now_ms,
        policy=policy_digest,
        first_failed_ms=_number(read, RETRY_FIRST_FAILED_MS, now_ms, MAX_EPOCH_MS),
        last_failed_ms=now_ms,
        error_type=NAMELESS,
        error_message="",
        reason=DeadReason.DAMAGED.value,
        fingerprint="damaged",  # one cause for all records with damaged metadata
        replays=_number(read, RETRY_REPLAYS, 0, MAX_COUNT),
        null_value=readable(lambda: read.flag(RETRY_NULL_VALUE), False),
    )


def _plain(text_of: Callable[[], str]) -> str:
    try:
        return ascii(text_of()[:MAX_PLAIN_CHARS])[1:-1][:MAX_PLAIN_CHARS] or NAMELESS
    except Exception:  # noqa: BLE001 - a name or a text may be user code
        return NAMELESS


def single(headers: Headers) -> dict[str, bytes]:
    """Keep headers of ours that occur once and are not null: of two that contradict each other neither counts."""
    ours = [(name, value) for name, value in headers if name in OUR_HEADERS]
    times = Counter(name for name, _ in ours)
    return {name: value for name, value in ours if value is not None and times[name] == 1}


def _number(read: HeaderReader, header: str, neutral: int, most: int) -> int:
    number = readable(lambda: read.number(header), neutral)
    return number if number <= most else neutral


def readable(read: Callable[[], _T], neutral: _T) -> _T:
    """Return what is read, or the neutral value where that is damaged."""
    try:
        return read()
    except DamagedMetadataError:
        return neutral

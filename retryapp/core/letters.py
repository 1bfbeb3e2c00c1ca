"""What a dead letter says of the record that died, for a handler of dead letters.

Each header is read by itself: a letter with damaged headers, or one that another program wrote, is given as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from retryapp.core.errors import DamagedMetadataError
from retryapp.core.headers import (
    RETRY_ATTEMPT,
    RETRY_ERROR_MESSAGE,
    RETRY_ERROR_TRACE,
    RETRY_ERROR_TYPE,
    RETRY_FIRST_FAILED_MS,
    RETRY_LAST_FAILED_MS,
    RETRY_NULL_VALUE,
    RETRY_ORIGIN_TIMESTAMP_MS,
    RETRY_REASON,
    RETRY_REPLAYS,
    RETRY_RULE,
    HeaderReader,
    decode_metadata,
)
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.salvage import readable, single
from retryapp.core.values import keyword_value_type


@keyword_value_type
class Letter:
    """Why a record is dead. None is what its dead letter does not say, or not readably."""

    reason: str | None
    """`exhausted`, `rejected`, ...: the words of `retryapp dead list`."""
    error_type: str | None
    error_message: str | None
    error_trace: str | None
    rule: str | None
    """The rule of the policy that decided."""
    attempts: int | None
    origin: Origin | None
    """Where the record was first delivered."""
    timestamp_ms: int | None
    """Original timestamp of the record, epoch milliseconds."""
    first_failed_ms: int | None
    last_failed_ms: int | None
    replays: int | None
    """How often the record had been replayed before it died, if it was."""
    damage: str | None
    """What is wrong with the letter's headers; None: nothing."""


_TEXTS: Final = {
    "reason": RETRY_REASON, "error_type": RETRY_ERROR_TYPE, "error_message": RETRY_ERROR_MESSAGE,
    "error_trace": RETRY_ERROR_TRACE, "rule": RETRY_RULE,
}  # fmt: skip
_NUMBERS: Final = {
    "attempts": RETRY_ATTEMPT, "timestamp_ms": RETRY_ORIGIN_TIMESTAMP_MS, "first_failed_ms": RETRY_FIRST_FAILED_MS,
    "last_failed_ms": RETRY_LAST_FAILED_MS, "replays": RETRY_REPLAYS,
}  # fmt: skip


def read_letter(headers: Headers) -> Letter:
    """Return what the headers of a dead letter say, as far as they can be read."""
    read, damage = HeaderReader(single(headers)), None
    try:
        if decode_metadata(headers) is None:
            damage = "no retry headers: somebody else wrote this record"
    except DamagedMetadataError as error:
        damage = str(error)
    facts: dict[str, Any] = {name: readable(partial(read.text, header), None) for name, header in _TEXTS.items()}
    facts |= {name: readable(partial(read.number, header), None) for name, header in _NUMBERS.items()}
    return Letter(**facts, origin=readable(read.origin, None), damage=damage)


def opened(record: Record) -> Record:
    """Return a dead letter as its handler sees it: with all headers, and its null value restored."""
    is_null = not record.value and (RETRY_NULL_VALUE, b"1") in record.headers
    return replace(record, value=None) if is_null else record

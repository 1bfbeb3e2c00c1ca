"""Rows of the tables and records of the topics as plain facts, ready for JSON and for a template.

Lists hold no payloads: neither key nor value nor foreign headers. Damaged metadata is shown as such, never hidden and
never a reason for a page to fail.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.foreign import split_headers, unshield
from retryapp.core.headers import decode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers
from retryapp.core.rows import PendingRow, decode_row, parse_row_key
from retryapp.ports import DeadEntry, PendingEntry
from retryapp.web.payloads import header_text, payload_of

Facts = dict[str, Any]
"""What a page shows, as JSON has it: units in the names, times in epoch milliseconds."""

NO_METADATA: Final = "the record carries no retry metadata"


def _metadata(headers: Headers) -> tuple[RetryMetadata | None, str | None]:
    try:
        metadata = decode_metadata(headers)
    except DamagedMetadataError as error:
        return None, str(error)
    return metadata, None if metadata else NO_METADATA


def _summary(metadata: RetryMetadata | None, damaged: str | None) -> Facts:
    """What a list says about a record; None for what damaged metadata cannot tell."""
    if metadata is None:
        names = ("failure_id", "origin", "attempt", "tier", "reason", "error_type", "first_failed_ms", "last_failed_ms")
        return {**dict.fromkeys(names), "damaged": damaged}
    return {
        "failure_id": metadata.failure_id,
        "origin": asdict(metadata.origin),
        "attempt": metadata.attempt,
        "tier": metadata.tier,
        "reason": metadata.reason,
        "error_type": metadata.error_type,
        "first_failed_ms": metadata.first_failed_ms,
        "last_failed_ms": metadata.last_failed_ms,
        "damaged": None,
    }


def _detail(headers: Headers) -> Facts:
    """Everything that the headers say about a record, and the headers themselves."""
    metadata, damaged = _metadata(headers)
    foreign, ours = split_headers(headers)
    return {
        **_summary(metadata, damaged),
        "metadata": asdict(metadata) if metadata else None,
        "headers": [_header(name, value) for name, value in unshield(foreign)],
        "retry_headers": [_header(name, value) for name, value in ours],
    }


def _header(name: str, value: bytes | None) -> Facts:
    return {"name": name, "value": header_text(value)}


def _null_restored(value: bytes | None, metadata: RetryMetadata | None) -> bytes | None:
    return None if metadata is not None and metadata.null_value and not value else value


def pending_summary(entry: PendingEntry) -> Facts:
    """Return one line of the list of waiting records."""
    key = parse_row_key(entry.key)
    facts = {"partition": key.partition, "origin_offset": key.origin_offset, "due_at_ms": key.due_at_ms}
    try:
        row = decode_row(entry.value)
    except DamagedRowError as error:
        return {**_summary(None, str(error)), **facts}
    return {**_summary(*_metadata(row.headers)), **facts}


def pending_detail(entry: PendingEntry) -> Facts:
    """Return one waiting record with its headers, key and value."""
    key = parse_row_key(entry.key)
    facts = {"partition": key.partition, "origin_offset": key.origin_offset, "due_at_ms": key.due_at_ms}
    damaged = None
    try:
        row = decode_row(entry.value)
    except DamagedRowError as error:
        row, damaged = PendingRow(None, entry.value, (), -1), str(error)
    detail = {**_detail(row.headers), **facts}
    if damaged:
        detail["damaged"] = damaged
    return {
        **detail,
        "parked_ms": row.timestamp_ms if row.timestamp_ms >= 0 else None,
        "key": payload_of(row.key),
        "value": payload_of(_null_restored(row.value, _metadata(row.headers)[0])),
    }


def dead_summary(entry: DeadEntry) -> Facts:
    """Return one line of the list of dead letters."""
    return {
        **_summary(*_metadata(entry.row.headers)),
        "partition": entry.partition,
        "offset": entry.row.offset,
    }


def dead_detail(entry: DeadEntry) -> Facts:
    """Return one dead letter with its headers; key and value have to be read from the topic."""
    return {**_detail(entry.row.headers), "partition": entry.partition, "offset": entry.row.offset}


def is_null(entry: DeadEntry) -> bool:
    """Tell whether a dead letter's original value was null."""
    metadata, _ = _metadata(entry.row.headers)
    return metadata is not None and metadata.null_value

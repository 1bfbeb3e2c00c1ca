"""Facts that several tests need one of: metadata of a record that waits, and a partition as the pages see it."""

from __future__ import annotations

from dataclasses import replace

from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin
from retryapp.ports import PartitionInfo

WAITING = RetryMetadata(
    group="app",
    handler="shop.charge",
    origin=Origin("orders", "kq8G0bTz", 0, 0),
    origin_timestamp_ms=1,
    attempt=1,
    due_at_ms=1,
    started_ms=1,
    policy="p",
    tier="1m",
    first_failed_ms=1,
    last_failed_ms=1,
    error_type="ValueError",
    error_message="no",
    fingerprint="f",
)
"""Failed once; every number is as small as it can be."""


def waiting(offset: int, **changes: object) -> RetryMetadata:
    """Return that metadata for the record at an offset of the main topic."""
    return replace(WAITING, origin=replace(WAITING.origin, offset=offset), **changes)  # type: ignore[arg-type]


def dead(offset: int) -> RetryMetadata:
    """Return metadata of its dead letter."""
    return waiting(offset, due_at_ms=None, tier=None, reason="exhausted")


def partition(number: int, **changes: object) -> PartitionInfo:
    """Return an open, idle partition."""
    plain = PartitionInfo(
        partition=number,
        state="open",
        owner_url=None,
        pending=0,
        pending_by_tier={},
        next_due_ms=None,
        dead=0,
        in_flight=0,
        last_error=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # a test's own fields

"""Facts that several tests need one of: a record that waits, its row, and a partition as the pages see it."""

from __future__ import annotations

from dataclasses import replace

from retryapp.core.headers import encode_metadata
from retryapp.core.hops import failure_of
from retryapp.core.metadata import HELD, RetryMetadata
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row, key_of_row
from retryapp.ports import PartitionInfo, Row

WAITING = RetryMetadata(
    group="app",
    handler="shop.charge",
    origin=Origin("orders", "kq8G0bTz", 0, 0),
    origin_timestamp_ms=1,
    attempt=1,
    delivery=1,
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
    return replace(WAITING, origin=replace(WAITING.origin, offset=offset), **changes)  # type: ignore[arg-type]


def dead(offset: int) -> RetryMetadata:
    return waiting(offset, due_at_ms=None, tier=None, reason="exhausted")


def waiting_row(
    offset: int,
    *,
    due_at_ms: int = 1,
    tier: str = "1m",
    value: bytes = b"v",
    topic_id: str = "kq8G0bTz",
    circuit: str = "",
    failed: bool = True,
    **changes: object,
) -> Row:
    """Return the row of that record, as the engine makes it, with `changes` of its metadata."""
    never = {} if failed else {"tier": HELD, "attempt": 0, "delivery": 0}
    metadata = waiting(offset, due_at_ms=due_at_ms, **{"tier": tier, **changes, **never})
    metadata = replace(metadata, origin=replace(metadata.origin, topic_id=topic_id))
    failure = failure_of(metadata) if failed else b""
    row = PendingRow(b"k", value, encode_metadata(metadata), due_at_ms, 1, metadata.attempt, 1, failure=failure)
    row = row.in_circuit(circuit) if circuit else row
    return Row(identity_of(metadata.origin), encode_row(row), metadata.tier or "?")


def key_of(row: Row) -> bytes:
    return key_of_row(row.value or b"", row.identity)


def removal(row: Row) -> Row:
    """Return the change that removes a record's row."""
    return Row(row.identity, None, "?")


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

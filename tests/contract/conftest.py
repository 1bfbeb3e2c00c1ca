"""Rows and dead letters as the engine makes them, for the contract of the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers, Origin
from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.ports import DeadRow, Row

MakeRow = Callable[..., Row]
MakeDead = Callable[..., DeadRow]

_WAITING = RetryMetadata(
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


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    """Make a row: due time, origin offset, tier, value."""

    def make(due_at_ms: int, offset: int, tier: str = "1m", value: bytes = b"v") -> Row:
        metadata = replace(_WAITING, origin=replace(_WAITING.origin, offset=offset), due_at_ms=due_at_ms, tier=tier)
        row = PendingRow(b"k", value, encode_metadata(metadata), 1)
        return Row(row_key(due_at_ms, 0, offset), encode_row(row), tier)

    return make


@pytest.fixture(scope="session")
def make_dead() -> MakeDead:
    """Make a dead letter: offset on the dead-letter topic, offset of the origin (None: headers without metadata)."""

    def make(offset: int, origin_offset: int | None = 0) -> DeadRow:
        foreign: Headers = (("n", str(offset).encode()),)
        if origin_offset is None:
            return DeadRow(offset, foreign)
        metadata = replace(
            _WAITING,
            origin=replace(_WAITING.origin, offset=origin_offset),
            due_at_ms=None,
            tier=None,
            reason="exhausted",
        )
        return DeadRow(offset, foreign + encode_metadata(metadata))

    return make

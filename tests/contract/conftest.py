"""Rows and dead letters as the engine makes them, for the contract of the tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from samples import dead, waiting

from retryapp.core.headers import encode_metadata
from retryapp.core.record import Headers
from retryapp.core.rows import PendingRow, encode_row, row_key
from retryapp.ports import DeadRow, Row

MakeRow = Callable[..., Row]
MakeDead = Callable[..., DeadRow]


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    """Make a row: due time, origin offset, tier, value."""

    def make(due_at_ms: int, offset: int, tier: str = "1m", value: bytes = b"v") -> Row:
        row = PendingRow(b"k", value, encode_metadata(waiting(offset, due_at_ms=due_at_ms, tier=tier)), 1)
        return Row(row_key(due_at_ms, 0, offset), encode_row(row), tier)

    return make


@pytest.fixture(scope="session")
def make_dead() -> MakeDead:
    """Make a dead letter: offset on the dead-letter topic, offset of the origin (None: headers without metadata)."""

    def make(offset: int, origin_offset: int | None = 0) -> DeadRow:
        foreign: Headers = (("n", str(offset).encode()),)
        if origin_offset is None:
            return DeadRow(offset, foreign)
        return DeadRow(offset, foreign + encode_metadata(dead(origin_offset)))

    return make

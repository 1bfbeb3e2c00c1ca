"""Dead letters as the engine makes them, for the contract of the tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.core.record import Headers
from retryapp.ports import DeadRow

MakeDead = Callable[..., DeadRow]


@pytest.fixture(scope="session")
def make_dead() -> MakeDead:
    """Make a dead letter: offset on the dead-letter topic, offset of the origin (None: headers without metadata)."""

    def make(offset: int, origin_offset: int | None = 0) -> DeadRow:
        foreign: Headers = (("n", str(offset).encode()),)
        if origin_offset is None:
            return DeadRow(offset, foreign)
        return DeadRow(offset, foreign + encode_metadata(dead(origin_offset)))

    return make

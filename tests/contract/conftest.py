"""Dead letters as the engine makes them, and the rows that a look reads, for the contract of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from samples import dead

from retryapp.core.headers import encode_metadata
from retryapp.core.record import Headers
from retryapp.ports import DeadRow
from retryapp.runtime.stores.pending import RocksPendingTable

MakeDead = Callable[..., DeadRow]


@pytest.fixture(scope="session")
def make_dead() -> MakeDead:
    """Make a dead letter: offset on its topic, and of the origin (None: no metadata), key, changes of the metadata."""

    def make(offset: int, origin_offset: int | None = 0, key: bytes | None = b"k", **changes: Any) -> DeadRow:
        foreign: Headers = (("n", str(offset).encode()),)
        ours = () if origin_offset is None else encode_metadata(replace(dead(origin_offset), **changes))
        return DeadRow(offset, foreign + ours, key, 1_000 + offset)

    return make


@pytest.fixture
def reads_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[RocksPendingTable], list[bytes]]:
    """Return a list that gets the key of each row that a look reads from a table from now on."""

    def noted(table: RocksPendingTable) -> list[bytes]:
        items, read = table._store.items, list[bytes]()

        def each(start: bytes) -> Iterator[tuple[bytes, bytes]]:
            for key, value in items(start):
                read.append(key)
                yield key, value

        monkeypatch.setattr(table._store, "items", each)
        return read

    return noted

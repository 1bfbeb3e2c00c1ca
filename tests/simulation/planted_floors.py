"""Planted faults of where a lane without a store begins to read its changelog; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from retryapp.core.rows import is_held
from retryapp.engine.lane import recovery
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.ports import Acks, LaneBatch, Row, TopicReader
from retryapp.testing import MemoryPendingTable

_PATIENCE: Final = 20
"""Offsets after which a row has long been due, by the longest delay of a policy."""


async def _one_record_on(site: LaneSite, reader: TopicReader) -> int:
    """The first record behind the marker that the floor is on is left out."""
    floor = await _floor_of(site, reader)
    return floor + 2 * bool(floor)


_floor_of = recovery.floor_of


async def _as_if_committed(self: LaneProtocol, batch: LaneBatch) -> Acks:
    """What a transaction changes counts before it is committed: it may be refused."""
    if isinstance(self.pending, MemoryPendingTable):
        self.pending._old -= {row.identity for row in batch.rows}
    return await _log(self, batch)


_log = LaneProtocol._log


def _in_time(self: MemoryPendingTable, rows: Sequence[Row], next_offset: int | None, last_written: int | None) -> None:
    """The floor rises with time: no row is thought to wait for longer than the policy says."""
    if (next_offset or 0) > self._next_floor + _PATIENCE:
        self._old = frozenset()
    _apply(self, rows, next_offset, last_written)


def _of_those_due(self: MemoryPendingTable, *batch: Any) -> None:
    """Rows that are held do not keep the floor down."""
    _apply(self, *batch)
    self._old -= {row.identity for row in self.rows.values() if row.value is not None and is_held(row.value)}


def _of_none(self: MemoryPendingTable, *batch: Any) -> None:
    """The floor is where the last generation began, whether rows from before it are left or not."""
    self._old = frozenset()
    _apply(self, *batch)


_apply = MemoryPendingTable._apply


FLOORS: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("a rebuild begins a record too late", ((recovery, "floor_of", _one_record_on),), 30),
    ("what is not committed raises the floor", ((LaneProtocol, "_log", _as_if_committed),), 1_000_131),
    ("the floor rises with time", ((MemoryPendingTable, "_apply", _in_time),), 1_000_025),
    ("held rows do not keep the floor down", ((MemoryPendingTable, "_apply", _of_those_due),), 1_000_025),
    ("no row keeps the floor down", ((MemoryPendingTable, "_apply", _of_none),), 6),
)
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it."""

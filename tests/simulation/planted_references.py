"""Planted faults of records that wait by reference; see `simulation.mutants`."""

from __future__ import annotations

from typing import Any, Final

from retryapp.core import reference as core
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.engine.delivery import reference
from retryapp.engine.delivery.run import DeliveryContext


def _too_long(_context: DeliveryContext, _timestamp_ms: int) -> int:
    """It waits by reference, however long."""
    return MAX_EPOCH_MS


REFERENCES: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("no checksum", ((core, "_checksum", lambda _record: 0),), 119),
    ("held past what the topic keeps", ((reference, "safe_until_ms", _too_long),), 13),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

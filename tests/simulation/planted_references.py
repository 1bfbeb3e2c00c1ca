"""Planted faults of records that wait by reference; see `simulation.mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from retryapp.core import reference as core
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.record import Record
from retryapp.core.rows import Reference
from retryapp.engine.delivery import reference
from retryapp.engine.delivery.run import DeliveryContext


def _too_long(context: DeliveryContext, record: Record) -> Reference | None:
    """It waits by reference, however long."""
    found = _refer(context, record)
    return None if found is None else replace(found, safe_until_ms=MAX_EPOCH_MS)


_refer = reference._refer


REFERENCES: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("no checksum", ((core, "_checksum", lambda _record: 0),), 119),
    ("held past what the topic keeps", ((reference, "_refer", _too_long),), 1),
)  # fmt: skip
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""

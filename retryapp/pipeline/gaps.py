"""Offsets that were not read, and which of these losses somebody has acknowledged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from retryapp.pipeline.errors import NameUnknownError
from retryapp.pipeline.facts import Facts

GAPS_TABLE: Final = "gaps"
_ACKNOWLEDGED: Final = "acknowledged"
_IDENTITY: Final = ("topic", "topic_id", "partition", "from_offset", "to_offset", "reason")


class Gaps:
    """The gaps of one lake: facts that stay, and a fact more for each that is acknowledged."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def put(self, row: Mapping[str, Any]) -> None:
        """Note a gap; one that is found twice is one."""
        self._facts.put(GAPS_TABLE, gap_id(row), row)

    def rows(self) -> list[dict[str, Any]]:
        """Return all gaps, with ``gap`` (12 hex digits), ``acknowledged_ms`` and ``note`` (None: not acknowledged)."""
        known = {row["gap"]: row for row in self._facts.rows(_ACKNOWLEDGED)}
        nothing = {"acknowledged_ms": None, "note": None}
        found = {gap_id(row): row for row in self._facts.rows(GAPS_TABLE)}
        rows = [{**row, "gap": name, **nothing, **known.get(name, {})} for name, row in found.items()]
        return sorted(rows, key=lambda row: (row["found_ms"], row["topic"], row["partition"]))

    def acknowledge(self, names: Sequence[str], *, now_ms: int, note: str) -> None:
        """Note that losses are known: checks no longer fail because of them.

        Raises:
            NameUnknownError: there is no such gap; none was acknowledged.
        """
        known = {row["gap"] for row in self.rows()}
        if unknown := sorted(set(names) - known):
            raise NameUnknownError("gap", unknown[0])
        for name in names:
            self._facts.put(_ACKNOWLEDGED, name, {"gap": name, "acknowledged_ms": now_ms, "note": note})


def gap_id(row: Mapping[str, Any]) -> str:
    """Return a gap's identity."""
    return hashlib.sha256(" ".join(str(row[name]) for name in _IDENTITY).encode()).hexdigest()[:12]

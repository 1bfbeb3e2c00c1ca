"""Offsets that were not read, and which of these losses somebody has acknowledged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from retryapp.pipeline.errors import NameUnknownError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.lake import Lake

GAPS_TABLE: Final = "gaps"
_ACKNOWLEDGED: Final = "acknowledged"
_IDENTITY: Final = ("topic", "topic_id", "partition", "from_offset", "to_offset", "reason")
SHORTER: Final = "is shorter than the archive: new records below offset {:,} are not read"


class Gaps:
    """The gaps of one lake: facts that stay, and a fact more for each that is acknowledged."""

    def __init__(self, lake: Lake) -> None:
        self._facts = Facts(lake)

    def put(self, row: Mapping[str, Any]) -> None:
        """Note a gap; one that is found twice is one."""
        self._facts.put(GAPS_TABLE, gap_id(row), row)

    def has(self, row: Mapping[str, Any]) -> bool:
        return bool(self._facts.get(GAPS_TABLE, gap_id(row)))

    def rows(self) -> list[dict[str, Any]]:
        """Return all gaps, with ``gap`` (12 hex digits), ``acknowledged_ms`` and ``note`` (None: not acknowledged)."""
        known = {row["gap"]: row for row in self._facts.rows(_ACKNOWLEDGED)}
        nothing = {"acknowledged_ms": None, "note": None}
        found = {gap_id(row): row for row in self._facts.rows(GAPS_TABLE)}
        rows = [{**row, "gap": name, **nothing, **known.get(name, {})} for name, row in found.items()]
        return sorted(rows, key=lambda row: (row["found_ms"], row["topic"], row["partition"]))

    def open_of(self, group: str) -> int:
        """Count the gaps of a group that nobody has acknowledged; reads no others, of which there may be hundreds."""
        left = set(self._facts.names(GAPS_TABLE)) - set(self._facts.names(_ACKNOWLEDGED))
        return sum(self._facts.get(GAPS_TABLE, name).get("group") == group for name in left)

    def acknowledge(self, names: Sequence[str], *, now_ms: int, note: str) -> None:
        """Note that losses are known, each by its own name or all of a topic by its: checks no longer fail of them.

        Raises:
            NameUnknownError: there is no such gap; none was acknowledged.
        """
        rows = self.rows()
        if unknown := set(names) - {row[field] for row in rows for field in ("gap", "topic")}:
            raise NameUnknownError("gap", min(unknown))
        for name in (row["gap"] for row in rows if row["gap"] in names or row["topic"] in names):
            self._facts.put(_ACKNOWLEDGED, name, {"gap": name, "acknowledged_ms": now_ms, "note": note})


def gap_text(row: Mapping[str, Any]) -> str:
    place, begin, end = f"{row['topic']}[{row['partition']}]", row["from_offset"], row["to_offset"]
    if begin is None:
        return f"{place} {SHORTER.format(end)}"
    return f"{place} from offset {begin:,} to {'an unknown offset' if end is None else f'{end:,}'} ({row['reason']})"


def gap_id(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(" ".join(str(row[name]) for name in _IDENTITY).encode()).hexdigest()[:12]

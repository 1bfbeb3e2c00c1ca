"""Which keys were erased, until when their records are not kept, and which erasures have not come to their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from retryapp.pipeline.facts import Facts
from retryapp.pipeline.tables import ERASURES_TABLE

_ENDED: Final = "ended"


@dataclass(frozen=True, slots=True, order=True)
class Erasure:
    """One erasure that began."""

    erased_ms: int
    """Records that arrived until then are not kept, epoch milliseconds."""
    key_hash: str


class Erasures:
    """Reads and writes ``erasures``: a fact when one begins, and one when all its steps are done."""

    def __init__(self, facts: Facts) -> None:
        """Args: facts: of the lake."""
        self._facts = facts

    def begin(self, erasure: Erasure) -> None:
        """Say that one begins: from now on no record of the key that arrived until then is archived."""
        self._put(erasure, None)

    def end(self, erasure: Erasure, ended_ms: int) -> None:
        """Say that nothing is left of it in the lake."""
        self._put(erasure, ended_ms)

    def open(self) -> tuple[Erasure, ...]:
        """Return those that have not ended, by time: at work still, or dead in the middle.

        Of each key the last one, for an erasure that ends does all that former ones of its key had to do.
        """
        begun: dict[str, int] = {}
        ended: dict[str, int] = {}
        for row in self._facts.rows(ERASURES_TABLE):
            told = begun if row.get("ended_ms") is None else ended
            told[row["key_hash"]] = max(row["erased_ms"], told.get(row["key_hash"], 0))
        left = (Erasure(erased_ms, key) for key, erased_ms in begun.items() if erased_ms > ended.get(key, -1))
        return tuple(sorted(left))

    def _put(self, erasure: Erasure, ended_ms: int | None) -> None:
        name = f"{erasure.key_hash} {erasure.erased_ms}" + ("" if ended_ms is None else f" {_ENDED}")
        row = {"key_hash": erasure.key_hash, "erased_ms": erasure.erased_ms, "ended_ms": ended_ms}
        self._facts.put(ERASURES_TABLE, name, row)

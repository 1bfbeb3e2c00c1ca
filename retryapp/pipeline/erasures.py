"""The erased keys, until when their records are not kept, and the erasures that have not ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from retryapp.pipeline.facts import Facts, fact_name
from retryapp.pipeline.tables import ERASURES_TABLE

_ENDED: Final = "ended"


@dataclass(frozen=True, slots=True, order=True)
class Erasure:
    """One erasure that began."""

    erased_ms: int  # records that arrived until then are not kept, epoch milliseconds
    key_hash: str


class Erasures:
    """Reads and writes ``erasures``: a fact when one begins, and one when all its steps are done."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def begin(self, erasure: Erasure) -> None:
        """Note that one begins: from now on no record of the key that arrived until then is archived."""
        self._put(erasure, None)

    def end(self, erasure: Erasure, ended_ms: int) -> None:
        """Note that nothing is left of it in the lake."""
        self._put(erasure, ended_ms)

    def last(self, key_hash: str) -> Erasure | None:
        """Return the erasure of a key that reaches farthest, ended or not; None where there is none."""
        return max((each for each, is_end in self._named() if each.key_hash == key_hash and not is_end), default=None)

    def open(self) -> tuple[Erasure, ...]:
        """Return those that have not ended, by time; of each key the farthest, which covers the others."""
        begun: dict[str, Erasure] = {}
        ends: dict[str, list[Erasure]] = {}
        for each, is_end in sorted(self._named()):
            if is_end:
                ends.setdefault(each.key_hash, []).append(each)
            else:
                begun[each.key_hash] = each
        return tuple(sorted(each for key, each in begun.items() if not self._has_ended(each, ends.get(key, []))))

    def _has_ended(self, erasure: Erasure, ends: list[Erasure]) -> bool:
        later = (end for end in ends if end.erased_ms >= erasure.erased_ms)
        return any(self._facts.get(ERASURES_TABLE, fact_name(_name(end, is_end=True))) for end in later)

    def _named(self) -> list[tuple[Erasure, bool]]:
        """Return each fact's erasure, and whether it is the end; by the names, for there may be thousands."""
        found = []
        for name in self._facts.names(ERASURES_TABLE):
            key_hash, erased_ms, *end = name.split(fact_name(" "))
            found.append((Erasure(int(erased_ms), key_hash), bool(end)))
        return found

    def _put(self, erasure: Erasure, ended_ms: int | None) -> None:
        row = {"key_hash": erasure.key_hash, "erased_ms": erasure.erased_ms, "ended_ms": ended_ms}
        self._facts.put(ERASURES_TABLE, _name(erasure, is_end=ended_ms is not None), row)


def _name(erasure: Erasure, *, is_end: bool) -> str:
    return f"{erasure.key_hash} {erasure.erased_ms}" + (f" {_ENDED}" if is_end else "")

"""The erased keys, until when their records are not kept, and the erasures that have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from retryapp.core.headers import RETRY_FIRST_FAILED_MS
from retryapp.pipeline.facts import Facts, fact_name
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.schemas import struct, to_frame
from retryapp.pipeline.tables import ERASURES_TABLE

_ENDED: Final = "ended"
_SAYS: Final = f"h -> h.key = '{RETRY_FIRST_FAILED_MS}' AND cast(h.value AS string) RLIKE '^[0-9]{{1,18}}$'"
_FIRST_FAILED_MS: Final = (
    f"array_min(transform(filter(headers, {_SAYS}), h -> try_cast(cast(h.value AS string) AS bigint)))"
)


@dataclass(frozen=True, slots=True, order=True)
class Erasure:
    """One erasure that began."""

    erased_ms: int  # records that arrived or had failed until then are not kept, epoch milliseconds
    key_hash: str

    @property
    def predicate(self) -> str:
        """Return which rows of ``records`` it erases, as SQL."""
        return f"key_hash = '{self.key_hash}' AND {_reached(str(self.erased_ms))}"


class Erasures:
    """Reads and writes ``erasures``: a fact when one begins, and one when all its steps are done."""

    def __init__(self, lake: Lake) -> None:
        self._facts = Facts(lake)

    def put(self, erasure: Erasure, *, ended_ms: int | None = None) -> None:
        """Note that one begins: from now on no record of the key is archived that had arrived or failed until then.

        With ``ended_ms`` note that nothing is left of it in the lake.
        """
        row = {**asdict(erasure), "ended_ms": ended_ms}
        self._facts.put(ERASURES_TABLE, _name(erasure, is_end=ended_ms is not None), row)

    def reach(self) -> dict[str, int]:
        """Return until when records of each erased key are not kept; by the facts' names, which may be thousands."""
        reached: dict[str, int] = {}
        for name in self._facts.names(ERASURES_TABLE):
            key_hash, erased_ms, *_ = name.split(fact_name(" "))
            reached[key_hash] = max(int(erased_ms), reached.get(key_hash, 0))
        return reached

    def open(self) -> tuple[Erasure, ...]:
        """Return those that have not ended, by time; of each key the farthest, which covers the others."""
        farthest = sorted(Erasure(erased_ms, key_hash) for key_hash, erased_ms in self.reach().items())
        ends = ((each, fact_name(_name(each, is_end=True))) for each in farthest)
        return tuple(each for each, end in ends if not self._facts.get(ERASURES_TABLE, end))


def without_erased(rows: DataFrame, reach: Mapping[str, int]) -> DataFrame:
    """Leave out what was erased before it was archived; ``rows`` have the columns of ``records``."""
    if not reach:  # without a join it is faster
        return rows
    erased = to_frame(rows.sparkSession, list(reach.items()), struct("erased_hash string, erased_ms long"))
    gone = F.expr(f"key_hash = erased_hash AND {_reached('erased_ms')}")
    return rows.join(F.broadcast(erased), on=gone, how="left_anti")


def _reached(erased_ms: str) -> str:
    """A record that waits has its next hop, with key and value, long after it was erased; its header tells."""
    return f"(timestamp_ms <= {erased_ms} OR coalesce({_FIRST_FAILED_MS} <= {erased_ms}, false))"


def _name(erasure: Erasure, *, is_end: bool) -> str:
    return f"{erasure.key_hash} {erasure.erased_ms}" + (f" {_ENDED}" if is_end else "")

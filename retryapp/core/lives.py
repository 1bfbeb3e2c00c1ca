"""What a committed offset says of the worker that moved it, in the few bytes of metadata that Kafka keeps beside it.

``r2:3f9c`` : the life ``3f9c`` works behind this offset, and two before it ended uncleanly without moving it.
``s1:3f9c`` : the record at this offset was started alone, for the first time.
Nothing: whoever moved it let go in order.

A life is a process. Where the life that finds a mark is not the one that wrote it, the writer is gone without a word:
killed, out of memory, or cut off from the group. One such end proves nothing; two without any progress in between make
what is behind the offset suspect, and suspects run one at a time, each with a mark of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

SUSPECT_AFTER: Final = 2
"""Unclean ends in a row, without progress, after which records run alone."""
_MARK = re.compile(r"([rs])(\d{1,6}):([0-9A-Za-z._-]{1,64})")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a committed offset says."""

    alone: bool
    """The record at the offset was started alone, ``count`` times; else ``count`` lives ended there uncleanly."""
    count: int
    life: str

    @property
    def text(self) -> str:
        """Return it as the offset's metadata."""
        return f"{'s' if self.alone else 'r'}{self.count}:{self.life}"

    @property
    def counts(self) -> bool:
        """Whether it counts against the records after the offset."""
        return self.alone or self.count > 0


def parse_mark(text: str | None) -> Mark | None:
    """Return what an offset's metadata says; None for none, and for what somebody else has written there."""
    found = _MARK.fullmatch(text or "")
    return Mark(found[1] == "s", int(found[2]), found[3]) if found else None


class Suspected(NamedTuple):
    """Records that run alone."""

    crashes: int
    """How often a worker ended while the first of them did."""
    upto: int
    """Offset after the last of them; later records came after that end."""


class Suspicion(NamedTuple):
    """What a life finds at an offset where it begins."""

    mark: Mark | None
    """To be written before any record after the offset runs; None: nothing to write."""
    suspected: Suspected | None
    """None: nothing is suspect."""


def suspicion(found: Mark | None, life: str, *, start: int, end: int) -> Suspicion:
    """Return what follows from a mark for the life that finds it.

    Args:
        found: the mark; None: whoever was here let go in order.
        life: that of this process.
        start: the offset that the mark stands beside.
        end: that of the partition: with nothing in between, nothing can have ended a worker. Nor is there anything to
            mark, and most lanes of a worker with many partitions are in that state: the first record that comes is
            marked by the commit behind it, and where it ends the worker before, that end is not counted.
    """
    if start >= end and not (found is not None and found.counts):
        return Suspicion(None, None)
    if found is None or start >= end:
        return Suspicion(Mark(alone=False, count=0, life=life), None)
    if found.alone:
        crashes = found.count if found.life != life else found.count - 1  # our own life has not ended of it
        return Suspicion(found, Suspected(crashes, end))
    ends = found.count + (found.life != life)
    suspected = Suspected(0, end) if ends >= SUSPECT_AFTER else None
    return Suspicion(Mark(alone=False, count=ends, life=life), suspected)

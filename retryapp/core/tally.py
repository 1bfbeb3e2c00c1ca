"""What was counted of a partition of the main topic since its last `progress` event, as it travels with the offset.

It stands in the metadata that Kafka keeps beside a committed offset, behind the mark of `core.lives`, one space apart,
or alone where there is no mark:

``r0:3f9c p1:100-140@1700000000000:40,38,1`` : of the offsets from 100 on, before 140, 40 records were settled, 38 of
them done at their first delivery and 1 passed over; the others failed. The range began at that epoch millisecond.

The offset moves together with what it says, so a count survives its worker, and neither misses a record nor has one
twice. It belongs to that offset: one that was set by hand has nothing beside it, and where the second number is not
the offset, somebody has copied it, and it counts for nothing. ``p1`` is the version; others are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

MAX_NOTE_CHARS: Final = 256
"""No note is longer; a broker takes 4096 bytes unless it is told otherwise (`offset.metadata.max.bytes`)."""
_NUMBER = r"(0|[1-9]\d{0,18})"
_TALLY = re.compile(rf"p1:{_NUMBER}-{_NUMBER}@{_NUMBER}:{_NUMBER},{_NUMBER},{_NUMBER}", re.ASCII)
_ANY_VERSION = re.compile(r"p\d+:", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of settled first deliveries, from an offset on.

    Offsets have gaps (transaction marks, compaction), so a range of them is never a count: records are counted as they
    are settled.
    """

    from_offset: int
    """Where the last `progress` event ended, or counting began."""
    since_ms: int
    received: int = 0
    first_try_ok: int = 0
    """Of these, done at their first delivery."""
    skipped: int = 0
    """Of these, passed over without a delivery."""

    @property
    def failed(self) -> int:
        """Of those received: failed at their first delivery."""
        return self.received - self.first_try_ok - self.skipped

    def plus(self, *, received: int, ok: int, skipped: int = 0) -> Tally:
        """Return the tally with more records."""
        return replace(
            self,
            received=self.received + received,
            first_try_ok=self.first_try_ok + ok,
            skipped=self.skipped + skipped,
        )

    def text(self, to_offset: int) -> str:
        """Return it as an offset's metadata; empty where there is nothing to say."""
        if not self.received and self.from_offset == to_offset:
            return ""
        counts = f"{self.received},{self.first_try_ok},{self.skipped}"
        return f"p1:{self.from_offset}-{to_offset}@{self.since_ms}:{counts}"


def parse_tally(text: str, offset: int) -> Tally | None:
    """Return what was counted up to an offset; None where the text does not say, or speaks of another one."""
    found = _TALLY.fullmatch(text)
    if found is None:
        return None
    from_offset, to_offset, since_ms, received, ok, skipped = map(int, found.groups())
    if to_offset != offset or from_offset + received > to_offset or ok + skipped > received:
        return None
    return Tally(from_offset=from_offset, since_ms=since_ms, received=received, first_try_ok=ok, skipped=skipped)


class Note(NamedTuple):
    """The parts of the metadata of the main topic's offset."""

    mark: str
    """What `core.lives` reads; also what somebody else may have written there."""
    tally: str
    """What `parse_tally` reads."""

    @property
    def text(self) -> str:
        """Return it as metadata."""
        return " ".join(part for part in self if part)


def split_note(text: str) -> Note:
    """Return the parts of an offset's metadata."""
    if _ANY_VERSION.match(text):
        return Note("", text)
    mark, space, tally = text.partition(" ")
    return Note(mark, tally) if space and _ANY_VERSION.match(tally) else Note(text, "")

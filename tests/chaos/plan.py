"""What a campaign consists of: the faults, how often each is done, and what a machine needs for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from chaos.act import Act

Scenario = Callable[[Act, int], None]
Crowd = Callable[[Sequence[Act], int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of the fault matrix."""

    id: str
    title: str
    how: str
    """How it is done here, for the report."""
    run: Scenario | None = None
    crowd: Crowd | None = None
    """Instead of `run`, where the fault is done to a broker of its own with several groups on it."""
    rounds: int = 4
    """Rounds of a whole campaign."""
    known: str = ""
    """Why its rounds may fail through no fault of retryapp's: the page tells it, with each round that did."""
    alone: bool = False
    """It measures times: nothing of ours may run beside it."""
    link: bool = False
    """Workers may go through a link."""
    groups: int = 3
    """For a crowd: how many."""
    disk_mb: int = 0
    """For a crowd: size of a file system in memory that the broker writes to; 0 for the usual disk."""
    act: dict[str, Any] = field(default_factory=dict)
    """What differs from the usual act."""
    needs: Callable[[], str] = lambda: ""
    """Return why this machine cannot do it; empty where it can."""


@dataclass(frozen=True, slots=True)
class Round:
    """One of a campaign's rounds."""

    fault: Fault
    number: int
    seed: int

    @property
    def key(self) -> str:
        """Name in the run's log."""
        return f"{self.fault.id}#{self.number}"


def rounds(faults: Sequence[Fault], seed: int, times: float) -> Iterator[Round]:
    """Name all rounds, a round of each fault in turn, so that a campaign that is cut short has some of each.

    Args:
        faults: which.
        seed: of the campaign; each round's follows from it.
        times: how often to do all of it; a part of it where less than 1.
    """
    columns = [[(fault, n) for n in range(max(1, round(fault.rounds * times)))] for fault in faults]
    for row in zip_longest(*columns):
        for entry in row:
            if entry is not None:
                fault, number = entry
                digest = hashlib.sha256(f"{seed}/{fault.id}/{number}".encode()).digest()
                yield Round(fault, number, int.from_bytes(digest[:6], "big"))

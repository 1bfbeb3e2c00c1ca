"""What goes wrong in a history, in its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a time."""

    at_s: float
    kind: str
    slot: int
    """Which machine, where it is one's fault."""
    size: float
    """Between 0 and 1: how long or how much."""

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s  {self.kind} (machine {self.slot}, {self.size:.2f})"


KINDS: Final = (
    "kill", "kill", "kill at step", "kill at step", "kill, store lost", "power cut", "pause", "pause", "pause at step",
    "pause at step", "terminate", "late", "late",
    "broker down", "lossy", "slow", "clock jump", "compact", "retention", "disk full", "start",
    "offsets expire", "slow handover", "slow handover",
)  # fmt: skip
STOPPED: Final = "broker stopped"
"""Rarer than the others, and drawn apart."""
REFUSED: Final = "refused"
"""Some hand-offs, by their topics; drawn apart, too."""
OURS: Final = "fault of ours"
"""An exception in the engine's own code; drawn apart, too."""
FORGOTTEN: Final = "members forgotten"
"""All join the group again at once; with one worker, it gets back what it had."""
WRONG_TIME: Final = "wrong time"
"""One acknowledgement with a time that is off by as much as an hour."""
LONG_WAY: Final = "long way"
"""The answers to a machine take up to 0.8 s more."""
DELETED: Final = "unread records deleted"
"""All workers die, and the first record that they had not settled is deleted, until somebody decides."""
UNENDED: Final = "no end"
"""Of the next transaction, on the changelog: acknowledged, and committed readers stop before it."""
DAMAGED: Final = "rows damaged"
"""All workers die, and the tables of their machines are lost; rows of the changelogs cannot be read any more."""
SET_BACK: Final = "offsets set back"
"""All workers die, and somebody sets the offsets of the main topic back; drawn apart, too."""
REMADE: Final = "changelogs made again"
"""All workers die, and somebody deletes the changelogs and makes them again; until somebody decides."""
STEPPED: Final = "broker's clock set"
"""By as much as 30 s back, or 5 minutes forward; drawn apart, too."""
UNKNOWN: Final = "letters unknown"
"""The tables of dead letters of a machine fail when they are written next."""
REBORN: Final = "main topics made again"
"""Deleted and made again, with other ids and without records; workers run on, or all die before."""
RETAINED: Final = "settled letters deleted"
"""By retention: all that their handler's offset has passed, those that wait for a retry included; drawn apart, too."""
GROWN: Final = "main topic grows"
"""By one partition; ours follow some seconds later."""
DRAINS: Final = frozenset({"terminate", "start"})
"""Faults in which nothing is repeated."""
MEANWHILE: Final = (
    "kill",
    "kill at step",
    "kill, store lost",
    "pause",
    "terminate",
    "offsets expire",
    "lossy",
    REFUSED,
)
"""What goes wrong while a record runs for long, and those behind it end."""
LOSSES: Final = ("settled records deleted", "another record in its place", "batch damaged")
"""What happens to records of the main topic that have an outcome, where records wait by reference."""


def step_ms(fault: Fault) -> float:
    """Return by how much the broker's clock is set; half of the times by a little, and every third time back."""
    number, small = int(fault.size * 1_000), fault.size < 0.5
    return fault.size * (-30_000 if number % 3 == 0 else 300_000) * (0.02 if small else 1.0)

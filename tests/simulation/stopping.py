"""Sequences that stop behind their dead records: nothing behind one begins until somebody decides (I21)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from simulation.story import Origin, Story, Violation

STOPPED: Final = 8
"""What a row says in its third byte that stops a sequence."""


@dataclass(slots=True)
class Stops:
    """The stopped sequences of a handler."""

    fate: Callable[[str], str]
    """What a script comes to."""
    deciding: Callable[[Origin], bool] = lambda _origin: True
    """Whether a command may be on its way that ends a stop."""
    now: dict[Origin, None] = field(default_factory=dict)
    """Dead records whose rows are in the table by the changelog."""
    ever: set[tuple[Origin, int]] = field(default_factory=set)
    """The same, those that were, and how often they had been replayed."""

    def logged(self, origin: Origin, story: Story, row: bytes | None) -> None:
        """Take a row of the changelog, or the end of one."""
        self.now.pop(origin, None)
        if row is not None and row[2] == STOPPED:
            self.now[origin] = None
            self.ever.add((origin, story.replays))

    def check(self, origin: Origin, other: Origin, before: Story, *, always: bool) -> None:
        """A record begins behind another of its sequence; `always`: no life keeps another order.

        Raises:
            Violation: that one is dead, and nobody has decided.
        """
        if before.first is not None or before.gone or before.cancelling or self.deciding(other):
            return
        if other in self.now:
            raise Violation(f"I21 {origin}: begins, and its sequence has stopped behind {other}")
        if not always:
            return
        if before.fates == ["dead"] and (other, before.replays) not in self.ever:
            raise Violation(f"I21 {origin}: begins, and its sequence has not stopped behind {other}, which is dead")
        dies = self.fate(before.script) == "dead" and not before.stopped and {*"XK"}.isdisjoint(before.script)
        if dies and not before.fates:
            raise Violation(f"I21 {origin}: begins, and {other}, which dies, is not dead yet")

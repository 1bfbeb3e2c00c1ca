"""What must hold of a rate and of a circuit (I18): no burst, no attempt spent while it is not closed.

In an outage every call fails. Whether failures are free is asked of the engine when a call ends; which outcomes were is
judged from what readers see.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from simulation.story import Opening, Origin, Story, Violation

LATE_MS: Final = 20.0
"""What a bucket lets a caller catch up, twice."""


class Pacing:
    """Judges the pace of one handler; `every_ms` is the time between two retries of a partition."""

    def __init__(
        self, every_ms: float = 0.0, *, circuit: bool = False, lists: bool = False, through: bool = False
    ) -> None:
        self._every_ms = every_ms
        self._on_the_way = int(through)
        """Retries that the rate has let go and that come later, by the main topic: a refusal renews the producer."""
        self._circuit = circuit
        self._lists = lists
        """Calls of a list end before the outcomes of its records, so nobody can tell whether those are free."""
        self._begun: dict[tuple[int, Opening], int] = defaultdict(int)
        self.free = 0
        """Failures that spent no attempt."""

    def begun(self, origin: Origin, due_at_ms: int | None, now_ms: float, opening: Opening) -> None:
        if due_at_ms is None or not self._every_ms:
            return
        self._begun[origin[0], opening] += 1
        count = self._begun[origin[0], opening]
        most = 1 + self._on_the_way + (now_ms - opening.fenced_ms + LATE_MS) / self._every_ms
        if count > most:
            raise Violation(f"I18 {origin[0]}/{origin[1]}: retry {count} of a session, {most:.1f} are allowed by now")

    def is_free(self, story: Story, attempt: int, delivery: int) -> bool:
        free = (self._circuit or story.gated > 0) and attempt < delivery - story.free
        if free:
            story.free = delivery - attempt
            self.free += 1
        return free

    def spent(self, origin: Origin, story: Story, attempt: int, reason: str = "exhausted") -> None:
        if self._circuit and not self._lists and reason in {"exhausted", "expired"} and attempt not in story.spent:
            raise Violation(f"I18 {origin[0]}/{origin[1]}: attempt {attempt} is spent, which was free")

"""What must hold of the fences of deliveries (I32): they rise with the openings of a partition, and with nothing else.

So what a worker still delivers whose partition another one has opened has a smaller one than that.
"""

from __future__ import annotations

from collections import Counter

from simulation.story import Opening, Origin, must


class Fences:
    """Those of one handler, by partition and opening."""

    def __init__(self) -> None:
        self._known: dict[int, dict[Opening, int]] = {}
        self.reached: Counter[str] = Counter()

    def forget(self, number: int) -> None:
        """Note that the changelog of a partition was made again: its offsets begin anew."""
        self._known.pop(number, None)

    def begun(self, origin: Origin, fence: int, opening: Opening) -> None:
        """Judge a call that begins."""
        known = self._known.setdefault(origin[0], {})
        own = known.setdefault(opening, fence)
        must(fence == own, "I32", origin, f"fence {fence}, and {own} before in the same session")
        for other, number in known.items():
            if other.fenced_ms < opening.fenced_ms:
                what = f"fence {fence}, and a former opening had {number}"
                must(number < fence, "I32", origin, what)
                self.reached["a fence has risen"] += other.worker != opening.worker
                self.reached["a fence has risen in a worker"] += other.worker == opening.worker
            elif other.fenced_ms > opening.fenced_ms:
                self.reached["who has lost its partition has a smaller fence"] += 1
                must(number > fence, "I32", origin, f"fence {fence} of a former opening, and {number} of a later one")

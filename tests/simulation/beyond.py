"""What stands beside committed offsets about the records beyond them, judged by what became of those (I6).

Whatever a note names has a fate by then, it is named until the offset has passed it, and it does not run again. Like
the oracle this reads the bytes by itself.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections import Counter, defaultdict
from collections.abc import Mapping

from simulation.lives import SPAN
from simulation.story import FIRST, Origin, Story, Violation, must

_NOTE = re.compile(r"(?:^| )b1:(\d+):([^:]+):")


class Notes:
    """The notes of all partitions, in the order of their commits."""

    def __init__(self, stories: Mapping[Origin, Story]) -> None:
        self.named = 0
        """Records that notes have named."""
        self.skipped: set[Origin] = set()
        """Those that are skipped: after a crash one is counted as if it had succeeded."""
        self._stories = stories
        self._open: defaultdict[int, set[int]] = defaultdict(set)
        self._lives: Counter[int] = Counter()

    def named_now(self, number: int) -> bool:
        """Tell whether records of a partition are settled beyond its offset."""
        return bool(self._open[number])

    def forget(self, number: int) -> None:
        """Somebody has set the offset of a partition: nothing stands beside it."""
        self._open[number] = set()

    def committed(
        self, number: int, offset: int, note: str, now_ms: float, life: int = 0, *, over: bool = False
    ) -> None:
        """Judge what is committed for a partition, in a life of the main topic that may be over by now.

        Raises:
            Violation: it names a record without a fate, or none that there is, or no longer one that it named.
        """
        told = {at + SPAN * life: fine for at, fine in read_note(note, offset).items()}
        offset += SPAN * life
        for at in self._open[number] if self._lives[number] == life and not over else ():
            must(at in told or at < offset, "I6", (number, at), f"no longer named beside {offset}, and not passed")
        for at, fine in told.items():
            story = self._stories.get((number, at))
            if story is not None and story.gone:
                continue
            if story is None:
                raise Violation(f"I6 {number}/{at}: named beside {offset}, and nobody sent it")
            skipped = "skipped" in story.fates
            succeeded = any(call.fine for call in story.calls[1]) and (not story.copies[1] or story.again > 0)
            there = bool(story.copies[1] or story.fates or story.held or story.replays)
            there = succeeded or skipped if fine else there
            must(there, "I6", (number, at), f"named beside {offset} without a fate ({fine})")
            if fine or not (story.held or story.again):  # else its row may wait, since before it came again
                story.settled_ms.setdefault(0 if fine else FIRST, now_ms)
            self.named += at not in self._open[number]
            if fine and skipped:
                self.skipped.add((number, at))
        self._open[number], self._lives[number] = set(told), life


def read_note(note: str, offset: int) -> dict[int, bool]:
    """Return whether each record succeeded that a note names, by offset.

    Raises:
        Violation: it is of another offset.
    """
    found = _NOTE.search(note)
    if found is None:
        return {}
    if int(found[1]) != offset:
        raise Violation(f"I6: the note of offset {found[1]} stands beside {offset}")
    told: dict[int, bool] = {}
    number = scale = 0
    for byte in urlsafe_b64decode(found[2]):
        number += byte % 128 << scale
        scale += 7
        if byte < 128:
            offset += number // 2
            told[offset] = number % 2 == 0
            offset, number, scale = offset + 1, 0, 0
    return told

"""What must hold of committed offsets (I6), and of handler calls beside the suspects that their notes name (I14)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import inf

from retryapp.ports import TopicPartition
from simulation.again import Again
from simulation.lives import SPAN
from simulation.story import Opening, Origin, Story, must

_SUSPECTS, _SUSPECT_ROWS = (
    re.compile(begin + r"(s|g)\d+:(?P<life>[^@]+)@(?P<first>[\d.]+)(-(?P<end>[\d.]+))?")
    for begin in ("(?:^| )", "(?:^| )w")
)


class Offsets:
    """The committed offsets of a group, and what is judged by those of the main topic."""

    def __init__(self, stories: Mapping[Origin, Story], again: Again, reached: Counter[str]) -> None:
        self._stories = stories
        self._reached = reached
        self.again = again
        self._moved: dict[tuple[int, int], int] = {}
        """By partition and life of the main topic."""
        self.strays: set[Origin] = set()
        """Copies of other groups: they are no records, and skipped."""

    def reached(self, number: int, life: int) -> int:
        """Return up to where the records of a life are passed."""
        return SPAN * life + self._moved.get((number, life), 0)

    def moved(self, offsets: Mapping[TopicPartition, int], life: int = 0) -> None:
        """Committed offsets are about to move: everything that they pass has a durable fate."""
        for tp, offset in offsets.items():
            before = self._moved.get((tp.partition, life), 0)
            must(offset >= before, "I6", (tp.partition, offset), f"{tp.topic} moves back from {before}")
            self._moved[tp.partition, life] = offset
            for at in range(SPAN * life + before, SPAN * life + offset):
                if (tp.partition, at) in self._stories:
                    self._check_passed((tp.partition, at))

    def set_back(self, number: int, offset: int, now_ms: float) -> None:
        """Somebody has set the offset of a partition."""
        self.again.set_back(number, offset, now_ms)
        self._moved[number, 0] = offset

    def _check_passed(self, origin: Origin) -> None:
        story = self._stories[origin]
        if story.gone:
            return
        if story.again:
            self.again.passed(origin, story)
        fine = any(call.fine for call in story.calls[1])
        if story.replays:  # it was dead
            return
        must(fine or bool(story.copies[1]) or bool(story.fates) or story.held, "I6", origin, "passed without a fate")
        waits = not story.copies[1] or not story.dues[1].isdisjoint(story.rows)
        must(waits, "I6", origin, "its copy is on the retry topic, and no row waits")

    def suspects(self, origin: Origin, attempt: int, due_at_ms: int | None, note: str, opening: Opening) -> None:
        """A handler call begins beside this note of the main topic's offset: what it names runs, and nothing else does.

        Whatever ran before in that session is durable: the mark does not name it any more.
        """
        story = self._stories[origin]
        if due_at_ms is None and story.held and story.again:
            return  # its held row, or the record that came again: the call does not say which
        is_row = due_at_ms is not None or story.held
        mark = (_SUSPECT_ROWS if is_row else _SUSPECTS).search(note)
        if mark is None or mark["life"] != opening.worker:
            return
        self._reached["suspects ran together" if mark["end"] else "a suspect ran alone"] += 1
        first = _place(mark["first"])
        end = _place(mark["end"]) if mark["end"] else (*first[:-1], first[-1] + 1)
        place = (due_at_ms or 0, origin[1] % SPAN) if is_row else (origin[1] % SPAN,)
        must(first <= place < end, "I14", origin, f"attempt {attempt} runs beside {mark[0]}")
        ordered = self.again.orders.get(opening.worker, "none") != "none"
        for other, story in self._stories.items():
            began_ms = story.began_ms.get((opening, is_row), inf)
            if other[0] != origin[0] or began_ms == inf or (not is_row and first <= (other[1] % SPAN,) < end):
                continue
            passed = other[1] < self.reached(other[0], other[1] // SPAN)
            waits = is_row and other == origin
            by_offset = not is_row or (story.held and story.again > 0)  # as above, the call does not say which
            settled = 0 in story.settled_ms or story.outcome_ms >= began_ms or (passed and by_offset)
            named = is_row and any(first <= (due_ms, other[1] % SPAN) < end for due_ms in story.rows)
            durable = settled or waits or named or self._waits_for_the_offset(other, ordered=ordered)
            must(durable, "I14", origin, f"attempt {attempt} beside {other}, not durable")

    def _waits_for_the_offset(self, origin: Origin, *, ordered: bool) -> bool:
        """Tell whether a record is a duplicate, or behind one that could not be read: those wait for it.

        In an order so does what is behind a duplicate: it may be the successor of that.
        """
        partition, offset = origin
        reached = self.reached(partition, offset // SPAN)
        if any(at[0] == partition and reached <= at[1] <= offset for at in self.strays):
            return True
        before = range(reached, offset + 1) if ordered else (offset,)
        stories = (self._stories.get((partition, at)) for at in before)
        return any(story is not None and story.first is not None for story in stories)


def _place(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))

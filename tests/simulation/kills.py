"""How many workers a record may end (I5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulation.lives import SPAN
from simulation.offsets import Offsets
from simulation.story import Origin, Story, must, step


class Kills:
    """Judges records that end their workers; `most` of them, by how many are between the committed offset and it."""

    def __init__(self, most: Callable[[int], int], stories: Mapping[Origin, Story], offsets: Offsets) -> None:
        self._most = most
        self._stories = stories
        self.all_stories = [stories]
        """Those of all handlers of a worker."""
        self._offsets = offsets

    def begun(self, origin: Origin, attempt: int, *, is_row: bool) -> None:
        """A handler call begins."""
        story = self._stories[origin]
        if step(story.script, attempt) not in "XK":
            return
        if not is_row:
            story.ahead = max(story.ahead, origin[1] - self._offsets.reached(origin[0], origin[1] // SPAN))
        kills = story.begun[attempt] - len(story.calls[attempt])
        must(kills <= self._most(story.ahead) * self._killers(), "I5", origin, "ended too many workers")

    def _killers(self) -> int:
        """Return how many records end their workers: each delays what is found of the others.

        Also on other partitions, and of other handlers: the group moves them, and a lane that is let go takes its mark
        back.
        """
        scripts = (story.script for stories in self.all_stories for story in stories.values() if story.begun)
        return sum(not {*"XK"}.isdisjoint(script) for script in scripts)

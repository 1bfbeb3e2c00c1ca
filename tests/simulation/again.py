"""Records that come again, since somebody has set the group's offset back (I26).

Each that the offset had passed runs once more from its first delivery, unless it waits when it is read: then its row
goes on, and it does not run beside that. The offset passes none of them before it has an outcome. What they had come to
may be there twice; what comes of others may not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from simulation.stopping import STOPPED
from simulation.stores import Stores, origin_of
from simulation.story import Opening, Origin, Story, must


class Again:
    """The records of one handler that come again."""

    def __init__(self, stories: Mapping[Origin, Story], stores: Stores, reached: Counter[str]) -> None:
        self._stories = stories
        self._stores = stores
        self._reached = reached
        self._waited_ms: dict[Origin, float] = {}
        """When the offset was set back before a record that waited."""
        self.orders: Mapping[str, str] = {}
        """What order each worker keeps."""

    def set_back(self, number: int, offset: int, now_ms: float) -> None:
        """Somebody has set the offset of a partition."""
        for (partition, at), story in self._stories.items():
            touched = story.begun or story.fates or story.rows
            if partition != number or at < offset or not touched:
                continue
            if self._waits((partition, at)):
                self._waited_ms[partition, at] = now_ms
                self._reached["a record comes again that waits"] += 1
            story.had_stopped = self._is_stop((partition, at))
            story.again, story.again_ms, story.was_results = story.again + 1, now_ms, story.results
            story.settled_ms.clear()
            self._reached["a record comes again"] += 1

    def anew(self, story: Story) -> None:
        """Take a first delivery: what commands have made of its record before is over, if that comes again."""
        if story.anew_ms < story.again_ms:
            story.anew_ms, story.record = story.again_ms, story.sent
            story.replays = story.renewed = 0
            story.cancelled_ms = story.held_ms = inf
            story.deferred.clear()
            story.freed.clear()
            story.runs.clear()

    def _waits(self, origin: Origin) -> bool:
        return any(origin_of(origin[0], identity) == origin for identity in self._stores.waiting(origin[0]))

    def _is_stop(self, origin: Origin) -> bool:
        rows = self._stores.rows[origin[0]].items()
        return any(row[2] == STOPPED for identity, row in rows if origin_of(origin[0], identity) == origin)

    def begun(self, origin: Origin, opening: Opening) -> None:
        """A first delivery begins.

        Raises:
            Violation: its record waits in a row since the offset was set back.
        """
        story = self._stories[origin]
        story.free = 0 if story.again else story.free
        waits = self._waited_ms.get(origin, inf) < opening.fenced_ms and self._waits(origin)
        must(not waits or story.held, "I26", origin, "runs once more, and it waits in a row")

    def passed(self, origin: Origin, story: Story) -> None:
        """The offset passes a record that has come again.

        Raises:
            Violation: it has not run since, or nothing says what came of that.
        """
        fine = any(call.fine and call.ended_ms >= story.again_ms for call in story.calls[1])
        waited = origin in self._waited_ms or set(self.orders.values()) != {"none"}
        told = story.outcome_ms if waited else story.first_ms
        told_since = told >= story.again_ms or story.had_stopped
        must(fine or told_since or self._waits(origin), "I26", origin, "set back, and passed without a run")

    def settled(self, story: Story, *, publishes: bool) -> bool:
        """Tell whether a record that has come again has an end since."""
        if story.ended_ms >= story.again_ms or story.had_stopped:
            return True
        fine = any(call.fine and call.ended_ms >= story.again_ms for call in story.calls[1])
        return fine and (story.results > story.was_results or not publishes)

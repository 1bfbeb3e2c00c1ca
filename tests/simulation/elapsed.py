"""What must hold of policies that give up a record some time after its first failure (I32).

What is dead as `expired` would have waited longer than that, by the waits of its policy or by what its handler asked
for; and nothing waits longer, where nothing else holds it back.
"""

from __future__ import annotations

from math import inf
from typing import Final

from simulation.steering import Steering
from simulation.story import Origin, Story, must
from simulation.waits import Waits

AWAY_MS: Final = 300.0
"""What readers see of each hold and pause may be so much longer: its events come with their transactions."""
SLACK_MS: Final = 60.0
"""From the end of a call until somebody looks at the clock; it may have published."""
HUNG_MS: Final = 5_000.0
"""The same where the call does not heed its cancellation."""
STOPPED_MS: Final = 30_000.0
"""The longest time for which a history stops a process."""


class Elapsed:
    """Judges the deadlines of one handler."""

    def __init__(
        self, most_ms: int | None, waits: Waits, *, skew_ms: float, stops: bool, plain: bool, list_ms: float
    ) -> None:
        self._most_ms = most_ms
        self._list_ms = list_ms
        """The time-out of a call with several records: one that has failed may fail with the others by then."""
        self._waits = waits
        self._slack_ms = SLACK_MS + skew_ms + STOPPED_MS * stops
        self._plain = plain
        """No circuit, and no pause, is between failures."""

    def waits_on(self, origin: Origin, story: Story, attempt: int, due_ms: int) -> None:
        """Judge a copy: a record is to be tried again."""
        failed_ms = [call.ended_ms for call in story.calls[1]]
        # a call that was told to stop, or whose publications came late, has failed some time after that
        odd = story.stopped or story.overdue or story.again or story.replays or story.hurried or not failed_ms
        if self._most_ms is None or not self._plain or odd:
            return
        late_ms = due_ms - max(failed_ms) - self._most_ms - self._slack_ms
        must(late_ms <= 0, "I32", origin, f"waits after attempt {attempt}, {late_ms:.0f} ms too long")

    def expired(self, origin: Origin, story: Story, attempt: int, steering: Steering | None) -> None:
        """Judge the end of a record that is dead as its next wait would take too long, holds and pauses not counted."""
        must(self._most_ms is not None, "I32", origin, "dead as expired, and its policy has no deadline")
        # the judge of modes knows instants; one that hangs fails after its call has ended
        odd = story.stopped or story.hurried or not {*"AHW"}.isdisjoint(story.script)
        if odd or not story.calls[attempt]:
            return
        early_ms = -self._over_ms(story, attempt) - self._slack_ms
        if steering is not None and steering.calm:
            first_ms, last_ms = (min(call.ended_ms for call in story.calls[each]) for each in (1, attempt))
            away_ms, spells = steering.away(origin[0], story, first_ms, last_ms)
            steering.reached["one has expired that was held or paused"] += away_ms > AWAY_MS
            early_ms += max(0.0, away_ms - spells * AWAY_MS)
        must(early_ms <= 0, "I32", origin, f"dead as expired after attempt {attempt}, {early_ms:.0f} ms too soon")

    def may_end(self, story: Story) -> bool:
        """Tell whether one of the calls of a record may have been its last one: the next wait would take too long."""
        late_ms = inf if "A" in story.script else HUNG_MS if "H" in story.script else self._slack_ms
        attempts = [attempt for attempt, calls in story.calls.items() if calls]
        return self._most_ms is not None and any(self._over_ms(story, each) + late_ms >= 0 for each in attempts)

    def _over_ms(self, story: Story, attempt: int) -> float:
        """Return by how much the wait after an attempt would have ended too late."""
        first_ms = min((call.ended_ms for call in story.calls[1]), default=inf)
        ends_ms = (
            self._waits.most_ms(story, attempt, call.worker) + max(call.ended_ms, call.started_ms + self._list_ms)
            for call in story.calls[attempt]
        )
        return max(ends_ms) - first_ms - (self._most_ms or 0)

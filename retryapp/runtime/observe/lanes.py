"""Remembers since when each lane of this worker is in its state, and its last error, for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from retryapp.ports import Clock, Event, Observation, Observer

_EVENTS: Final = frozenset({Event.LANE_OPENED, Event.LANE_FAILED, Event.LANE_CLOSED})


@dataclass(slots=True)
class LaneStory:
    """State and last error of a lane."""

    state: str = ""
    session: int = 0
    since_ms: int | None = None
    error: str | None = None
    error_ms: int | None = None
    cause: str | None = None
    """The last error since it was open that says more than that something took too long."""
    away: bool = False
    """The last error is that the group took the partition away: no error once it is back."""


class LaneWatch(Observer):
    """An observer of lanes. Times are those of observations, or of the first look without one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stories: dict[tuple[str, int], LaneStory] = {}  # bounded by the partitions that this process ever had

    @override
    def observe(self, observation: Observation) -> None:
        if observation.event not in _EVENTS or observation.partition is None:
            return
        closed = observation.event is not Event.LANE_OPENED
        story = self._stories.setdefault((observation.handler, observation.partition), LaneStory())
        story.state = "" if closed else "open"  # the next look tells which of the other states it is
        story.since_ms = self._clock.wall_ms()
        if not closed:
            story.cause = None
            if story.away:
                story.error = story.error_ms = None
        elif observation.message is not None:
            kind = f"{observation.error_type}: " if observation.error_type else ""
            error = f"{kind}{observation.message}"
            if observation.error_type != TimeoutError.__name__:
                story.cause = error
            elif story.cause is not None:
                error = f"{error}; before that, {story.cause}"
            story.error, story.error_ms = error, story.since_ms
            story.away = observation.event is Event.LANE_CLOSED

    def look(self, handler: str, partition: int, session: int, state: str, error: str | None) -> LaneStory:
        """Return what is known of a lane, given its session, state and last error now.

        The session begins anew when the group gives the partition to this worker again.
        """
        story = self._stories.setdefault((handler, partition), LaneStory())
        if session < story.session and story.state == state:
            story.state = ""
        if story.state != state:
            if story.state or story.since_ms is None:
                story.since_ms = self._clock.wall_ms()
            story.state = state
        story.session = session
        if error is not None and story.error is None:
            story.error, story.error_ms = error, self._clock.wall_ms()
        return story

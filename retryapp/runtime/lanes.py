"""Since when each lane of this worker is in its state, and what closed it last; for people who look."""

from __future__ import annotations

from dataclasses import dataclass

from retryapp.ports import Clock, Event, Observation


@dataclass(slots=True)
class LaneStory:
    """What is remembered of a lane. Bounded by the partitions that this process ever had."""

    state: str = ""
    session: int = 0
    since_ms: int | None = None
    error: str | None = None
    error_ms: int | None = None


class LaneWatch:
    """An observer of lanes. Times are those of what was observed, or of the first look where nothing was."""

    def __init__(self, clock: Clock) -> None:
        """Args: clock: for the times."""
        self._clock = clock
        self._stories: dict[tuple[str, int], LaneStory] = {}

    def observe(self, observation: Observation) -> None:
        """Take note of a lane that opened, closed or failed."""
        if observation.partition is None:
            return
        match observation.event:
            case Event.LANE_OPENED:
                story = self._story(observation)
                story.state, story.since_ms = "open", self._clock.wall_ms()
            case Event.LANE_FAILED | Event.LANE_CLOSED:
                story = self._story(observation)
                story.state, story.since_ms = "", self._clock.wall_ms()  # the next look tells which state it is
                if observation.message is not None:
                    kind = f"{observation.error_type}: " if observation.error_type else ""
                    story.error, story.error_ms = f"{kind}{observation.message}", story.since_ms

    def look(self, handler: str, partition: int, session: int, state: str, error: str | None) -> LaneStory:
        """Return what is known of a lane.

        Args:
            handler: main topic.
            partition: its number.
            session: of the lane, now; it begins anew when the group gives the partition to this worker again.
            state: of the lane, now.
            error: what the lane says of itself, now.
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

    def _story(self, observation: Observation) -> LaneStory:
        return self._stories.setdefault((observation.handler, observation.partition or 0), LaneStory())

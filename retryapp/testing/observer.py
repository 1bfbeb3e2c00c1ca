"""An observer that keeps what it was told."""

from __future__ import annotations

from retryapp.ports import Event, Observation


class RecordingObserver:
    """`ports.Observer` that keeps every observation, in order."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.seen: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        """Keep one observation."""
        self.seen.append(observation)

    def of(self, event: Event) -> list[Observation]:
        """Return the observations of one kind."""
        return [each for each in self.seen if each.event is event]

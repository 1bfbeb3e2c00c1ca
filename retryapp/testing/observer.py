"""An observer that records."""

from __future__ import annotations

from typing_extensions import override

from retryapp.ports import Event, Observation, Observer


class RecordingObserver(Observer):
    """`ports.Observer` that records."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    @override
    def observe(self, observation: Observation) -> None:
        self.seen.append(observation)

    def of(self, event: Event) -> list[Observation]:
        return [observation for observation in self.seen if observation.event is event]

"""When `MemoryPartition.to_rest` gives up: a handler publishes to its own main topic, or fails, without end."""

from __future__ import annotations

from typing import Final

from retryapp.engine.handler.handler import Handler
from retryapp.ports import Event
from retryapp.testing.observer import RecordingObserver

MOST_PUBLISHED: Final = 10_000
"""Records that a handler may publish to its own main topic."""
MOST_FAILED: Final = 10_000
"""Attempts of a record, where neither a number nor a time ends them."""


class Endless:
    """Judges what the observer sees from now on."""

    def __init__(self, handler: Handler, observer: RecordingObserver) -> None:
        self._handler = handler
        self._observer = observer
        self._looked = len(observer.seen)
        self._published = 0

    def problem(self) -> str | None:
        """Look at what is new; say what goes on without end."""
        seen, self._looked = self._observer.seen[self._looked :], len(self._observer.seen)
        main, ends = self._handler.main, self._handler.policy.max_elapsed_ms is not None
        self._published += sum(each.count for each in seen if each.event is Event.PUBLISHED and each.topic == main)
        if self._published > MOST_PUBLISHED:
            return f"the handler published {self._published} records to its own main topic"
        for each in seen:
            if each.event is Event.FAILED and not ends and (each.attempt or 0) > MOST_FAILED:
                return f"{each.failure_id} failed {each.attempt} times, and its policy has no end"
        return None

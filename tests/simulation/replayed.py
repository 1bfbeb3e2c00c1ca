"""What must hold of replays in an order (I33): each begins in its place, before all later records of its sequence.

The one that runs when the replay comes, or is about to, goes first. In a session that opens later none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from simulation.story import Opening, Origin, Story, must


@dataclass(slots=True)
class _Replay:
    at_ms: float
    """When it was visible. Its sequence has known of it since some time before."""
    passed: set[Opening] = field(default_factory=set)
    """Sessions in which what ran when it came has begun."""


class Replays:
    """The replays of a handler that keeps the order of keys, or of partitions."""

    def __init__(
        self,
        stories: Mapping[Origin, Story],
        orders: Mapping[str, str],
        waits: Callable[[Origin, Story], bool],
        reached: Counter[str],
    ) -> None:
        """Begin without any.

        Args:
            stories: of all records.
            orders: what order each worker keeps.
            waits: tells whether a replay has not run, and cannot have ended.
            reached: what the history has come to.
        """
        self._stories = stories
        self._orders = orders
        self._waits = waits
        self._reached = reached
        self._replays: dict[Origin, _Replay] = {}

    def came_back(self, origin: Origin, now_ms: float) -> None:
        """A replay is visible."""
        replay = self._replays[origin] = _Replay(now_ms)
        for other, story in self._stories.items():
            for going in story.going if other[0] == origin[0] else ():
                sequence = self._sequence(going.worker, other)
                openings = [each for each, _ in story.began_ms if each.worker == going.worker]
                own = sequence is not None and sequence == self._sequence(going.worker, origin)
                if own and openings and going.cancelled_ms == inf:
                    replay.passed.add(max(openings, key=lambda each: each.fenced_ms))
                    self._reached["a record is replayed while another of its sequence runs"] += 1

    def begun(self, origin: Origin, opening: Opening, *, owner: bool) -> None:
        """A record begins.

        Args:
            origin: the record.
            opening: the session.
            owner: its producer is not fenced, so what was replayed since it opened came through this session.
        """
        if (sequence := self._sequence(opening.worker, origin)) is None:
            return
        since_ms = self._replays[origin].at_ms if origin in self._replays else -inf
        for at, replay in self._replays.items():
            story = self._stories.get(at)
            if at[0] != origin[0] or at[1] >= origin[1] or story is None or not self._waits(at, story):
                continue
            found = replay.at_ms < opening.fenced_ms
            if self._sequence(opening.worker, at) == sequence and (found or owner):
                passed = found or opening in replay.passed or since_ms >= replay.at_ms
                must(not passed, "I33", origin, f"begins before {at} of its sequence, which was replayed before that")
                replay.passed.add(opening)

    def _sequence(self, worker: str, origin: Origin) -> bytes | None:
        order = self._orders.get(worker, "none")
        return self._stories[origin].sequence(order) if order in {"key", "partition"} else None

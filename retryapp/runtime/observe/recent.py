"""The last minute of each handler, from counters that are looked at every few seconds: records pay nothing for it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

from retryapp.ports import Activity, Clock

LOOK_S: Final = 5.0
SPAN_S: Final = 60.0
DELIVERIES: Final = "deliveries"
FAILURES: Final = "failures"


class Recent:
    """What was counted since the oldest look, which is a minute old once the worker is.

    `counted` returns by handler the counts since the start: of `DELIVERIES`, of `FAILURES`, and of retries by the upper
    bound of their lateness, as Prometheus counts buckets.
    """

    def __init__(self, counted: Callable[[], Mapping[str, Counter[str]]], clock: Clock) -> None:
        self._counted = counted
        self._clock = clock
        self._looks: deque[tuple[float, Mapping[str, Counter[str]]]] = deque(maxlen=round(SPAN_S / LOOK_S) + 1)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        self._looks.append((self._clock.monotonic_s(), self._counted()))

    def of(self, handler: str) -> Activity | None:
        """Return what ended in a handler lately, as of the last look; None before the first.

        No look of its own: each goes through the counters of all handlers, and a page asks for each of them.
        """
        if not self._looks:
            return None
        (began_s, before), (ended_s, after) = self._looks[0], self._looks[-1]
        gained = after.get(handler, Counter[str]()) - before.get(handler, Counter[str]())
        return Activity(
            span_s=ended_s - began_s,
            deliveries=gained.pop(DELIVERIES, 0),
            failures=gained.pop(FAILURES, 0),
            late_within=dict(gained),
        )

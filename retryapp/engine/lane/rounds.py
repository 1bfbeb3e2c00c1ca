"""Bound, in each round of the event loop, the work that can wait: redeliveries, jobs, and what lanes write of both.

A record of the main topic takes several rounds from the consumer to its handler. So what it waits behind many due rows,
or behind a job, is the length of a round. There is one bound for all handlers and partitions of a worker, and each gets
the loop in turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from typing import Final

ROUND_S: Final = 0.010
"""How long runs may begin in one round of the event loop: handlers that never wait would keep it for themselves."""
BEHIND_S: Final = 0.002
"""How long what can wait takes in one round while there are first deliveries (docs/protocol.md, rule 10)."""
RECENT_S: Final = 1.0
"""A first delivery that began within this time stands for others on their way."""


class Rounds:
    """The rounds of a worker's event loop."""

    def __init__(self) -> None:
        self._end_s: float | None = None
        """When the others have their turn; None: nothing that can wait has begun in this round."""
        self._first_s = -math.inf
        self._holder: object = None
        self._line: deque[object] = deque()
        self._waiting = Counter[object]()
        """How many tasks of each in line."""

    def came_first(self, now_s: float) -> None:
        """Note that a first delivery begins, at the loop's time."""
        self._first_s = now_s

    @property
    def shared(self) -> bool:
        """Whether there are first deliveries."""
        return asyncio.get_running_loop().time() - self._first_s < RECENT_S

    def _is_over(self) -> bool:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._end_s is None:
            self._end_s = now_s + (BEHIND_S if now_s - self._first_s < RECENT_S else ROUND_S)
            loop.call_soon(self._end)
        return now_s >= self._end_s

    def _end(self) -> None:
        self._end_s = self._holder = None

    def goes_on(self, who: object) -> bool:
        """Tell whether `who` may work now; else it is to wait for its turn."""
        # in this order: else one that waits behind others would begin a round, and what else the event loop does would
        # use it up before the first in line asks, in each round
        if (self._line and who is not self._holder and who is not self._line[0]) or self._is_over():
            return False
        self._holder = who
        return True

    async def turn(self, who: object) -> None:
        """Wait until `who` may work, after those that wait already. What it does then must be short.

        Tasks of one have their turns together: those that are left when its time ends go behind the others.
        """
        if self.goes_on(who):
            return
        if not self._waiting[who]:
            self._line.append(who)
        self._waiting[who] += 1
        try:
            while not self.goes_on(who):  # noqa: ASYNC110 - rounds are what it waits for
                await asyncio.sleep(0)
            self._line.remove(who)
            self._line.append(who)
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                self._line.remove(who)
                del self._waiting[who]

"""Time and randomness that a test decides.

Wall time and monotonic time start at unlike values and can be moved apart, so that code that mixes them up fails.
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

_NS = 1_000_000_000


class VirtualClock:
    """`ports.Clock` that stands still until it is told to move."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_s: int = 1_000) -> None:
        """Take the times to start with.

        Args:
            wall_ms: epoch milliseconds.
            monotonic_s: seconds; the zero is arbitrary.
        """
        self._wall_ms = wall_ms
        self._monotonic_ns = monotonic_s * _NS
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = count()
        self.trusted = True
        """See `ports.Clock.trusted`."""
        self.known = True
        """See `ports.Clock.known`."""
        self.anchors: list[tuple[float, float, int]] = []
        """What `anchor` was told: sent, acknowledged, appended."""

    def wall_ms(self) -> int:
        """Return the epoch time in milliseconds."""
        return self._wall_ms

    def latest_ms(self) -> int:
        """Return the epoch time in milliseconds, of which nothing is uncertain."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """Return seconds that only grow."""
        return self._monotonic_ns / _NS

    def counted_ms(self) -> float:
        """Return the epoch time in milliseconds."""
        return float(self._wall_ms)

    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        """Note an acknowledgement; time is what the test says."""
        self.anchors.append((sent_ms, acked_ms, appended_ms))

    @property
    def sleeping(self) -> int:
        """How many tasks wait in `sleep`."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced by so much; zero or less only lets other tasks run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_ns + round(seconds * _NS), next(self._turns), sleeper))
        await sleeper

    def advance(self, ms: int) -> None:
        """Let time pass: both times move, and whoever slept long enough wakes at the next turn of the loop.

        Raises:
            ValueError: `ms` is negative; use `jump_wall` for a wall clock that is set back.
        """
        if ms < 0:
            raise ValueError(f"time cannot pass backwards ({ms} ms)")
        self._wall_ms += ms
        self._monotonic_ns += ms * (_NS // 1_000)
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ns:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or, with a negative number, back; no time passes."""
        self._wall_ms += ms

    def drive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the timers of an event loop (`asyncio.timeout`, `call_later`) follow this clock as long as it lives.

        Such timers ring only when the clock is advanced, however long the test takes.
        """
        loop.time = self.monotonic_s  # type: ignore[method-assign]


class ScriptedRandom:
    """`ports.Random` that gives the listed numbers in turn, and then the last one for ever."""

    def __init__(self, *numbers: float) -> None:
        """Take the numbers.

        Raises:
            ValueError: there is none, or one is not in [0, 1).
        """
        if not numbers or not all(0 <= number < 1 for number in numbers):
            raise ValueError(f"expected numbers in [0, 1), got {numbers}")
        self._numbers = numbers
        self.taken = 0
        """How many were asked for."""

    def random(self) -> float:
        """Return the next number."""
        number = self._numbers[min(self.taken, len(self._numbers) - 1)]
        self.taken += 1
        return number

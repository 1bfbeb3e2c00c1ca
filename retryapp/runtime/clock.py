"""The real clock: wall time that no jump of the system clock can pull forward.

Due times are wall times; a system clock that jumps two hours ahead would fire everything at once, and one that jumps
back would stop everything. So wall time is counted from an anchor by the monotonic clock. Small corrections of the
system clock (up to `MAX_SLEW_MS`) are followed, larger jumps are ignored until the process starts again, and said in
the log.
"""

from __future__ import annotations

import asyncio
import time

from mode.utils.logging import get_logger

logger = get_logger(__name__)

MAX_SLEW_MS = 1_000
"""Largest difference to the system clock that is followed."""
_CHECK_S = 1.0


def _counted_s() -> float:
    """Return seconds that only grow, and that count the time in which the machine slept where the system tells it."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SystemClock:
    """`ports.Clock` on the machine's clocks."""

    def __init__(self) -> None:
        self._anchor_wall_ms = time.time_ns() // 1_000_000
        self._anchor_monotonic_s = _counted_s()
        self._checked_s = self._anchor_monotonic_s
        self._jumped = False

    def wall_ms(self) -> int:
        """Return epoch milliseconds; never goes back by more than `MAX_SLEW_MS`."""
        now_s = _counted_s()
        if now_s - self._checked_s >= _CHECK_S:
            self._follow(now_s)
        return self._anchor_wall_ms + int((now_s - self._anchor_monotonic_s) * 1000)

    def monotonic_s(self) -> float:
        """Return seconds that only grow."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def _follow(self, now_s: float) -> None:
        self._checked_s = now_s
        system_ms = time.time_ns() // 1_000_000
        counted_ms = self._anchor_wall_ms + int((now_s - self._anchor_monotonic_s) * 1000)
        difference_ms = system_ms - counted_ms
        if abs(difference_ms) <= MAX_SLEW_MS:
            self._anchor_wall_ms, self._anchor_monotonic_s = system_ms, now_s
            self._jumped = False
        elif not self._jumped:
            self._jumped = True
            logger.warning(
                "The system clock is %s ms away from the time counted since the last second: it jumped. "
                "Due times go on by the counted time",
                difference_ms,
            )

"""The real clock: wall time that agrees with the broker's, and that no jump of the system clock can pull forward.

Due times are wall times, and the worker that fires a record is seldom the one on which it failed. So wall time is the
broker's: counted by the monotonic clock, and anchored to the append times in acknowledgements (`core.skew`). Two
workers then differ by no more than their acknowledgements took, and by what their brokers differ.

Until the first acknowledgement, and when there was none for long, small corrections of the system clock (up to
`MAX_SLEW_MS`) are followed, as NTP makes them. Larger jumps are ignored and said in the log: a system clock that is set
two hours ahead would fire everything at once, and one that is set back would stop everything.
"""

from __future__ import annotations

import asyncio
import math
import time

from mode.utils.logging import get_logger

from retryapp.core.skew import BrokerSkew

logger = get_logger(__name__)

MAX_SLEW_MS = 1_000
"""Largest difference to the system clock that is followed."""
ANCHOR_HOLDS_S = 3_600.0
"""For so long after an acknowledgement the broker's time leads; then the system's is followed again."""
_CHECK_S = 1.0


def counted_s() -> float:
    """Return seconds that only grow, and that count the time in which the machine slept where the system tells it."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SystemClock:
    """`ports.Clock` on the machine's clocks and the broker's."""

    def __init__(self) -> None:
        self.skew = BrokerSkew()
        self._base_ms = time.time_ns() / 1_000_000
        self._base_s = counted_s()
        self._checked_s = self._base_s
        self._anchored_s: float | None = None
        self._normal_ms = 0.0
        """What the system clock is ahead of the counted time when nothing has jumped."""

    @property
    def trusted(self) -> bool:
        """Tell whether records may fire by this clock; see `ports.Clock.trusted`."""
        return self.skew.trusted

    @property
    def known(self) -> bool:
        """See `ports.Clock.known`."""
        return self.skew.known

    def wall_ms(self) -> int:
        """Return epoch milliseconds, the broker's as far as it is known; goes back only to agree with it."""
        return int(self.counted_ms() + self.skew.correction_ms)

    def latest_ms(self) -> int:
        """See `ports.Clock.latest_ms`: after `wall_ms`, where our own time is wrong, by as much as nobody can tell."""
        return self.wall_ms() + math.ceil(self.skew.late_ms)

    def counted_ms(self) -> float:
        """Return our own epoch milliseconds, uncorrected: what `anchor` compares with the broker's."""
        now_s = counted_s()
        if now_s - self._checked_s >= _CHECK_S:
            self._follow(now_s)
        return self._base_ms + (now_s - self._base_s) * 1000

    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        """Learn the broker's time from an acknowledgement.

        Args:
            sent_ms: `counted_ms` before the record was sent.
            acked_ms: `counted_ms` when its acknowledgement was there.
            appended_ms: when the broker appended it, by its own clock.
        """
        self._anchored_s = counted_s()
        first = not self.skew.known
        told = self.skew.observe(sent_ms=sent_ms, acked_ms=acked_ms, appended_ms=appended_ms, at_s=self._anchored_s)
        if not told:
            return
        if first:
            logger.warning(
                "This machine's clock is %d ms %s the broker's. Due times go by the broker's; set the clock (NTP)",
                abs(self.skew.correction_ms),
                "behind" if self.skew.correction_ms > 0 else "ahead of",
            )
        elif self.skew.trusted:
            logger.warning("Due times go by the broker's time again: %d ms from ours", self.skew.correction_ms)
        else:
            logger.warning("The broker's clock and ours do not agree any more: nothing fires until they do")

    def monotonic_s(self) -> float:
        """Return seconds that only grow."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def _follow(self, now_s: float) -> None:
        self._checked_s = now_s
        system_ms = time.time_ns() / 1_000_000
        counted_ms = self._base_ms + (now_s - self._base_s) * 1000
        change_ms = system_ms - counted_ms - self._normal_ms
        if abs(change_ms) > MAX_SLEW_MS:
            self._normal_ms += change_ms
            logger.warning("The system clock has jumped by %d ms. Due times go on by the counted time", change_ms)
        elif self._anchored_s is not None and now_s - self._anchored_s < ANCHOR_HOLDS_S:
            self._normal_ms += change_ms  # the broker's time leads
        else:
            self._base_ms += change_ms

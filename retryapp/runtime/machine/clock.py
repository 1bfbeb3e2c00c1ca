"""The real clock: wall time that agrees with the broker's and ignores jumps of the system clock.

Due times are wall times, and another worker may deliver the record. So wall time is counted by the monotonic clock and
anchored to the append times in acknowledgements (`core.skew`). Without one for `ANCHOR_HOLDS_S`, corrections of the
system clock up to `MAX_SLEW_MS` (NTP) are followed; larger jumps are logged and ignored.
"""

from __future__ import annotations

import asyncio
import math
import time

from mode.utils.logging import get_logger
from typing_extensions import override

from retryapp.core.durations import duration_text
from retryapp.core.skew import BrokerSkew
from retryapp.ports import Clock

logger = get_logger(__name__)

MAX_SLEW_MS = 1_000  # largest difference to the system clock that is followed
ANCHOR_HOLDS_S = 3_600.0  # after so long without an acknowledgement the system clock is followed again
_CHECK_S = 1.0
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def counted_s() -> float:
    """Return monotonic seconds, which include the machine's sleep if the system can tell."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class SystemClock(Clock):
    """The machine's clocks and the broker's."""

    def __init__(self) -> None:
        self.skew = BrokerSkew()
        self._base_ms = time.time_ns() / 1_000_000
        self._base_s = counted_s()
        self._checked_s = self._base_s
        self._anchored_s: float | None = None
        self._normal_ms = 0.0  # how far the system clock is ahead of the counted time without jumps

    @property
    @override
    def trusted(self) -> bool:
        return self.skew.trusted

    @property
    @override
    def known(self) -> bool:
        return self.skew.known

    @override
    def wall_ms(self) -> int:
        return int(self.counted_ms() + self.skew.correction_ms)

    @override
    def latest_ms(self) -> int:
        return self.wall_ms() + math.ceil(self.skew.late_ms)

    @override
    def counted_ms(self) -> float:
        now_s = counted_s()
        if now_s - self._checked_s >= _CHECK_S:
            self._follow(now_s)
        return self._base_ms + (now_s - self._base_s) * 1000

    @override
    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        self._anchored_s = counted_s()
        first = not self.skew.known
        if not self.skew.observe(sent_ms=sent_ms, acked_ms=acked_ms, appended_ms=appended_ms, at_s=self._anchored_s):
            return
        if first:
            logger.warning(
                "This machine's clock is %s %s the broker's. Due times go by the broker's; set the clock (NTP)",
                duration_text(abs(self.skew.correction_ms)),
                "behind" if self.skew.correction_ms > 0 else "ahead of",
            )
        elif self.skew.trusted:
            text = duration_text(self.skew.correction_ms)
            logger.warning("Due times go by the broker's time again: %s from ours", text)
        else:
            logger.warning("The broker's clock and ours disagree: no due row is delivered until they agree")

    @override
    def monotonic_s(self) -> float:
        return time.monotonic()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _follow(self, now_s: float) -> None:
        self._checked_s = now_s
        system_ms = time.time_ns() / 1_000_000
        counted_ms = self._base_ms + (now_s - self._base_s) * 1000
        change_ms = system_ms - counted_ms - self._normal_ms
        if abs(change_ms) > MAX_SLEW_MS:
            self._normal_ms += change_ms
            logger.warning("The system clock jumped by %s; due times ignore it", duration_text(change_ms))
        elif self._anchored_s is not None and now_s - self._anchored_s < ANCHOR_HOLDS_S:
            self._normal_ms += change_ms  # the broker's time leads
        else:
            self._base_ms += change_ms

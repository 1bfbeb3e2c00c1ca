"""The difference between the broker's clock and ours, from the append times in acknowledgements.

A record sent at ``a`` and acknowledged at ``b`` was appended between the two. So the broker's append time less ``b``
is a lower bound of how far the broker is ahead of us, and less ``a`` an upper bound (Cristian 1989, "Probabilistic
clock synchronization"; here with both bounds instead of their middle). Bounds of many records are intersected, and
loosen with time as crystals drift.

The correction stays while it is within the bounds; else it becomes the lower bound. The broker's time is then never
overestimated: the records of a machine whose clock is ahead would run early, by as long as its acknowledgements take.
A wait on a machine with a corrected clock counts from the latest possible time (``late_ms``), or records would be due
early elsewhere.

An acknowledgement that contradicts the bounds by up to ``DOUBT_MS`` is of another broker, or wrong: all that the two
allow is possible then, and the next one decides. If that is more than ``DOUBT_MS`` already, a clock is being set bit
by bit, and the newest counts. A larger contradiction means that our clock jumped or the broker's. Until ``AGREEING`` in
a row agree with each other, or one agrees with the bounds, the correction stays and is doubted.
"""

from __future__ import annotations

from typing import Final

DRIFT: Final = 0.000_5
"""Largest drift of two clocks against each other, as a fraction: NTP slews by no more (RFC 5905, 500 ppm)."""
DOUBT_MS: Final = 1_000
"""Contradictions up to this are another broker's clock; larger ones are a clock that jumped."""
AGREEING: Final = 3
"""Number of acknowledgements in a row that must agree with each other to replace the bounds."""


class BrokerSkew:
    """Bounds of the broker's time less our own, and the correction within them, in milliseconds."""

    def __init__(self) -> None:
        self.correction_ms = 0.0
        """The broker's time less our own."""
        self.known = False
        """At least one acknowledgement was observed."""
        self._low_ms = self._high_ms = 0.0
        self._at_s = 0.0
        self._rivals: list[tuple[float, float]] = []

    @property
    def trusted(self) -> bool:
        """Tell whether the correction may decide what is due."""
        return self.known and not self._rivals

    @property
    def error_ms(self) -> float:
        """Return the largest error of the correction at the last acknowledgement; 0 before the first."""
        return max(self._high_ms - self.correction_ms, self.correction_ms - self._low_ms)

    @property
    def late_ms(self) -> float:
        """Return how much later the broker's time may be than our corrected time.

        0 without a correction: due times are not delayed by the acknowledgements' latency where the clocks agree.
        """
        return max(0.0, self._high_ms - self.correction_ms) if self.correction_ms else 0.0

    def observe(self, *, sent_ms: float, acked_ms: float, appended_ms: int, at_s: float) -> bool:
        """Add an acknowledgement; return whether correction or trust has changed by more than ``DOUBT_MS``."""
        low, high = appended_ms - acked_ms, appended_ms + 1 - sent_ms
        if high < low:
            return False  # our own time went back in between
        if not self.known:
            self.known = True
            return self._take(low, high, at_s=at_s)
        loosened = max(0.0, at_s - self._at_s) * 1000 * DRIFT
        known_low, known_high = self._low_ms - loosened, self._high_ms + loosened
        contradiction = max(low - known_high, known_low - high)
        if contradiction <= DOUBT_MS:
            self._rivals.clear()
            ends = sorted((low, high, known_low, known_high))
            if contradiction <= 0:
                low, high = ends[1:3]
            elif self._high_ms - self._low_ms <= DOUBT_MS:
                low, high = ends[0], ends[3]
            self._take(low, high, at_s=at_s)
            return False
        doubted = not self._rivals
        self._rivals = [rival for rival in self._rivals if rival[0] <= high and low <= rival[1]]
        self._rivals.append((low, high))
        if len(self._rivals) < AGREEING:
            return doubted
        agreeing, self._rivals = self._rivals[::-1], []
        return self._meet(agreeing, at_s)

    def _meet(self, bounds: list[tuple[float, float]], at_s: float) -> bool:
        """Intersect the bounds; if they have nothing in common, take the newest, which come first."""
        low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
        return self._take(*((low, high) if low <= high else bounds[0]), at_s=at_s)

    def _take(self, low: float, high: float, *, at_s: float) -> bool:
        before = self.correction_ms
        self._low_ms, self._high_ms, self._at_s = low, high, at_s
        self.correction_ms = before if low <= before <= high else low
        return abs(self.correction_ms - before) > DOUBT_MS

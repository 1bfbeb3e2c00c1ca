"""The wall clock of the demo's own processes: service, feeder and balance are read on one machine."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the time now as epoch milliseconds, rounded down."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Return a time in seconds that never goes back, for budgets and rates."""
    return time.monotonic()

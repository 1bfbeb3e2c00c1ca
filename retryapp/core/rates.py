"""Rates as text, and the bucket that lets no more than a rate through.

A rate is a whole number for each second, minute or hour: ``50/s``, ``600/m``, ``1000/h``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from retryapp.core.errors import InvalidSettingError

CATCH_UP_MS: Final = 10.0
"""What a caller that was late may catch up: in any second 1 % of the rate, and one more, may come beside it."""

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_SHAPE: Final = re.compile(r"([1-9][0-9]{0,8})/([smh])")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """So many in a time."""

    count: int
    per_ms: int

    @property
    def text(self) -> str:
        """Canonical text; ``parse_rate`` reads it back."""
        return f"{self.count}/{next(unit for unit, size_ms in _UNITS_MS.items() if size_ms == self.per_ms)}"

    def share_ms(self, shares: int) -> float:
        """Return the time between two of one share, in milliseconds.

        >>> parse_rate("50/s").share_ms(4)
        80.0
        """
        return self.per_ms * max(1, shares) / self.count


def parse_rate(value: object) -> RateLimit:
    """Read a rate; raise `InvalidSettingError` for anything else."""
    found = _SHAPE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise InvalidSettingError(
            "rate_limit", value, "write a whole number for each second, minute or hour: '50/s', '600/m', '1000/h'"
        )
    return RateLimit(int(found[1]), _UNITS_MS[found[2]])


class LeakyBucket:
    """Lets one through each `every_ms`. It is empty at first and saves nothing up: idle time makes no burst.

    Times are monotonic milliseconds.
    """

    def __init__(self, every_ms: float, now_ms: float, catch_up_ms: float = CATCH_UP_MS) -> None:
        self.every_ms = every_ms
        self.catch_up_ms = catch_up_ms
        self.next_ms = 0.0
        """When the next may go."""
        self.empty(now_ms)

    def empty(self, now_ms: float) -> None:
        """Begin anew."""
        self.next_ms = now_ms + self.every_ms

    def room(self, now_ms: float) -> int:
        """Return how many may go now."""
        return max(0, 1 + int((now_ms - self._from_ms(now_ms)) // self.every_ms))

    def take(self, count: int, now_ms: float) -> None:
        """Note that so many go."""
        self.next_ms = self._from_ms(now_ms) + count * self.every_ms

    def _from_ms(self, now_ms: float) -> float:
        return max(self.next_ms, now_ms - self.catch_up_ms)

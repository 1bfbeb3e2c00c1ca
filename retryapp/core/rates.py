"""Rates as text, the bucket that lets no more than a rate through, and turns for those that share one.

A rate is a whole number for each second, minute or hour: ``50/s``, ``600/m``, ``1000/h``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import count
from typing import Final

from retryapp.core.errors import InvalidSettingError

CATCH_UP_MS: Final = 10.0
"""What a caller that was late may catch up: in any second 1 % of the rate, and one more, may come beside it."""

_MOST_TURNS: Final = 1_000
"""Turns that one look goes through."""
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
            "rate_limit", value, "expected a whole number for each second, minute or hour: '50/s', '600/m', '1000/h'"
        )
    return RateLimit(int(found[1]), _UNITS_MS[found[2]])


class LeakyBucket:
    """Lets one through each `every_ms`. It is empty at first and saves nothing up: idle time makes no burst.

    Times are monotonic milliseconds.
    """

    def __init__(self, every_ms: float, now_ms: float) -> None:
        self.every_ms = every_ms
        self.next_ms = 0.0
        """When the next may go."""
        self.empty(now_ms)

    def empty(self, now_ms: float) -> None:
        self.next_ms = now_ms + self.every_ms

    def room(self, now_ms: float) -> int:
        return max(0, 1 + int((now_ms - self._from_ms(now_ms)) // self.every_ms))

    def take(self, count: int, now_ms: float) -> None:
        """Note that so many go."""
        self.next_ms = self._from_ms(now_ms) + count * self.every_ms

    def _from_ms(self, now_ms: float) -> float:
        return max(self.next_ms, now_ms - CATCH_UP_MS)


class SharedTurns:
    """The turns of one of several that share a rate: each turn has one owner, however unlike the shares are.

    Turn ``n`` is at ``n * every_ms`` of the epoch. A share is a range of the numbers before `of`, and has the turns
    with ``n * step % of`` in it, where `step` is prime to `of` and next to its golden section: of any `of` turns in a
    row each has as many as its range is long, evenly, and no two need to talk. A turn that its owner has not looked at
    in time is lost, and makes no other faster.
    """

    def __init__(self, every_ms: float, share: tuple[int, int, int], now_ms: int, catch_up_ms: float) -> None:
        first, after, self._of = share
        self._range = range(first, after)
        self._step = next(each for each in count(int(0.618034 * self._of)) if math.gcd(each, self._of) == 1)
        self._every_ms = every_ms
        self._most = 1 + int(catch_up_ms / every_ms)
        self._next = 1 + self._turn(now_ms)
        self._saved = 0

    def _turn(self, now_ms: int) -> int:
        return int(now_ms // self._every_ms)

    def _own(self, turn: int) -> bool:
        return turn * self._step % self._of in self._range

    def room(self, now_ms: int) -> int:
        after = 1 + self._turn(now_ms)
        turns = range(max(self._next, after - min(self._most, _MOST_TURNS)), after)
        most = math.ceil(self._most * len(self._range) / self._of)
        self._saved = min(self._saved + sum(map(self._own, turns)), most)
        self._next = max(self._next, after)
        return self._saved

    def take(self, number: int) -> None:
        """Note that so many go."""
        self._saved = max(0, self._saved - number)

    def wait_ms(self, now_ms: int) -> float:
        if self._saved:
            return 0.0
        turns = range(self._next, self._next + _MOST_TURNS)
        return next(filter(self._own, turns), turns.stop) * self._every_ms - now_ms

"""How the service fails: a plan that is a pure function of a seed, a flight and its attempt.

Most flights meet no fault. A small share fails at its first one to three attempts and then succeeds; which, how often
and how follows from a hash of seed and flight id alone, so a restart of the service or of a worker changes nothing. On
top comes one outage of some seconds, in which every request is answered 503.

The bounds matter more than the shares: at most `MAX_PLANNED` planned failures and, because the answer to a request in
the outage asks for at least half of its length, at most two more in the outage. A policy of six retries survives that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

MAX_PLANNED = 3
"""A flight fails by plan at most so often."""


class FaultKind(StrEnum):
    """The ways in which the service fails and recovers."""

    UNAVAILABLE = "503"
    TIMEOUT = "timeout"
    RESET = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure."""

    kind: FaultKind
    retry_after_s: int | None = None
    """Seconds in the answer's `Retry-After`; none where there is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Which attempts at which flights fail outside the outage.

    Example:
        >>> plan = FaultPlan(seed=1)
        >>> plan.fault(7, 1) == FaultPlan(seed=1).fault(7, 1)
        True
        >>> plan.fault(7, MAX_PLANNED + 1) is None
        True
    """

    seed: int
    share: float = 0.15
    """Share of the flights that fail at all, 0 to 1."""
    timeout_share: float = 0.06
    """Share of the failures that hang until the client gives up. Small, because each holds a connection so long."""
    reset_share: float = 0.24
    """Share of the failures that break the connection; the rest is 503."""

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if not 0 <= self.share <= 1 or not 0 <= self.timeout_share + self.reset_share <= 1:
            message = (
                f"shares must be within 0 and 1: share={self.share}, "
                f"timeout_share={self.timeout_share}, reset_share={self.reset_share}"
            )
            raise ValueError(message)

    def failures(self, flight_id: int) -> int:
        """Return how many attempts at a flight fail by plan, 0 to `MAX_PLANNED`."""
        if self._draw("flaky", flight_id) >= self.share:
            return 0
        return 1 + int(self._draw("count", flight_id) * MAX_PLANNED)

    def fault(self, flight_id: int, attempt: int) -> Fault | None:
        """Return how this attempt (1 is the first) at this flight fails, or none."""
        if attempt > self.failures(flight_id):
            return None
        draw = self._draw(f"kind{attempt}", flight_id)
        if draw < self.timeout_share:
            return Fault(kind=FaultKind.TIMEOUT)
        if draw < self.timeout_share + self.reset_share:
            return Fault(kind=FaultKind.RESET)
        return Fault(kind=FaultKind.UNAVAILABLE, retry_after_s=1 + int(self._draw(f"after{attempt}", flight_id) * 3))

    def outage_retry_after_s(self, flight_id: int, outage_s: float) -> int:
        """Return what the answer in an outage asks for: spread, and at least half of the outage's whole length."""
        return max(1, -int(-outage_s // 2)) + int(self._draw("outage", flight_id) * 3)

    def _draw(self, purpose: str, flight_id: int) -> float:
        """Return a number in [0, 1) that only seed, purpose and flight decide."""
        digest = blake2b(f"{self.seed}/{purpose}/{flight_id}".encode(), digest_size=7).digest()
        return int.from_bytes(digest) / 2**56


class Outage:
    """The one window in which everything fails.

    It starts with request number `after_requests` or `after_s` seconds after the first request, whichever comes first,
    and lasts `seconds`. Both none: there is no outage.
    """

    def __init__(self, *, after_requests: int | None, after_s: float | None, seconds: float) -> None:
        """Set the window up; it has not begun."""
        self.after_requests = after_requests
        self.after_s = after_s
        self.seconds = seconds
        self._first_s: float | None = None
        self._began_s: float | None = None

    def covers(self, *, requests: int, now_s: float) -> bool:
        """Tell whether this request falls into the outage.

        Args:
            requests: number of this request, from 1.
            now_s: monotonic seconds.
        """
        if self._first_s is None:
            self._first_s = now_s
        if self._began_s is None and self.seconds > 0 and self._is_due(requests, now_s - self._first_s):
            self._began_s = now_s
        return self.is_on(now_s)

    def is_on(self, now_s: float) -> bool:
        """Tell whether the outage has begun and not ended."""
        return self._began_s is not None and now_s - self._began_s < self.seconds

    def state(self, now_s: float) -> str:
        """Return `none`, `ahead`, `on` or `over`."""
        if self._began_s is not None:
            return "on" if self.is_on(now_s) else "over"
        return "none" if self.after_requests is None and self.after_s is None else "ahead"

    def _is_due(self, requests: int, elapsed_s: float) -> bool:
        by_count = self.after_requests is not None and requests >= self.after_requests
        by_time = self.after_s is not None and elapsed_s >= self.after_s
        return by_count or by_time

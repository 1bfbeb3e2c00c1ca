"""How the service fails: pure functions of a flight and its attempt.

A share of the flights fails at its first one to three calls and then succeeds; a hash decides which, how often and how.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from retryapp.demo.visits import Outcome

MAX_PLANNED: Final = 3
"""A flight fails by plan at most this often."""
SHARE: Final = 0.15
"""Share of the flights that fail at all."""
TIMEOUT_SHARE: Final = 0.06
"""Share of the failures that hang until the client gives up. Small, because each holds a connection."""
RESET_SHARE: Final = 0.24
"""Share of the failures that break the connection; the rest is 503."""


class PlannedFault(NamedTuple):
    """One failure."""

    outcome: Outcome
    retry_after_s: int = 0
    """Seconds in the answer's `Retry-After`, where there is an answer."""


def planned_failures(flight_id: int) -> int:
    """Return how many attempts at a flight fail by plan, 0 to `MAX_PLANNED`."""
    return 1 + int(_draw("count", flight_id) * MAX_PLANNED) if _draw("flaky", flight_id) < SHARE else 0


def planned_fault(flight_id: int, attempt: int) -> PlannedFault | None:
    """Return how this attempt (1 is the first) at this flight fails, or None."""
    if attempt > planned_failures(flight_id):
        return None
    draw = _draw(f"kind{attempt}", flight_id)
    if draw < TIMEOUT_SHARE:
        return PlannedFault(Outcome.TIMEOUT)
    if draw < TIMEOUT_SHARE + RESET_SHARE:
        return PlannedFault(Outcome.RESET)
    return PlannedFault(Outcome.UNAVAILABLE, 1 + int(_draw(f"after{attempt}", flight_id) * 3))


def _draw(purpose: str, flight_id: int) -> float:
    digest = blake2b(f"1/{purpose}/{flight_id}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56

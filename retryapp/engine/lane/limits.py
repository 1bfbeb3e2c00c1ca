"""Bounds of a lane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """Bounds of a lane."""

    turns: int = 5_000
    changes: int = 500
    """Records in one transaction: writing them to the local stores blocks the event loop."""
    size: int = 4 * 1024 * 1024
    backlog: int = 10_000
    """Waiting turns; beyond it there is no room for records."""
    backlog_size: int = 16 * 1024 * 1024
    tick_s: float = 0.25
    """Longest wait of an offset without other changes."""
    rest: float = 1.0
    """Rest after a transaction, as a multiple of its own length. Measured with 8 lanes on one saturated processor at
    1,000 retries a second: lateness p99 408 ms without, 189 ms with 1, 178 ms with 2."""
    longest_rest_s: float = 0.02
    """Longest such rest. Measured with a fifth of the processor to spare: p99 112 ms with 0.05, 79 ms with 0.02."""
    renew_s: float = 18_000.0
    """An idle lane repeats a committed offset after this time, or up to twice that: a local store is dropped after 12 h
    without use, and the broker forgets unused transactional ids (`transactional.id.expiration.ms`, a week by default).
    """
    confirm_s: float = 10.0
    """Time from a hand-off to a repeated offset, if nothing else is committed. A broker that stopped may have rolled
    back the acknowledged transaction (docs/reliability.md, F4); it then refuses the producer, and the lane reopens."""
    open_s: float = 30.0
    commit_s: float = 30.0
    """Deadline of one transaction: above the transaction's own time-out, within which the client repeats requests."""
    first_backoff_s: float = 0.1
    """Wait after a failure, doubled by each further one."""
    last_backoff_s: float = 5.0
    """Longest such wait. A session that committed something and lasted this long ends the doubling."""
    steady_s: float = 60.0
    """So does any session that lasted this long."""


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Bound the block in time, with a TimeoutError that names `what`, unless an inner one has its own text."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        if str(exc):
            raise
        raise TimeoutError(f"{what} took longer than {seconds:g} s") from exc

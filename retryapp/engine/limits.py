"""Bounds of a lane, as data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """Bounds of a lane."""

    turns: int = 5_000
    changes: int = 2_000
    """Records in one transaction: writing them to the local stores holds the event loop."""
    size: int = 4 * 1024 * 1024
    """Bytes in one transaction, about."""
    backlog: int = 10_000
    """Turns that may wait; beyond it there is no room for records."""
    backlog_size: int = 16 * 1024 * 1024
    """Bytes of turns that may wait, the same."""
    tick_s: float = 0.25
    """Longest wait of an offset that comes with nothing else."""
    rest: float = 1.0
    """Rest after a transaction, as a multiple of its own length. Measured with 8 lanes on one processor at 1,000
    retries a second when that was all it could do: lateness p99 408 ms without, 189 ms with 1, 178 ms with 2."""
    longest_rest_s: float = 0.02
    """Longest such rest. Measured with a fifth of the processor to spare: p99 112 ms with 0.05, 79 ms with 0.02."""
    renew_s: float = 86_400.0
    """A lane that had nothing to commit for so long, or up to twice that, commits an offset that it has committed: the
    broker forgets transactional ids that nobody uses (`transactional.id.expiration.ms`, a week by default)."""
    confirm_s: float = 10.0
    """A lane that has handed something off, and then had nothing to commit for so long, commits an offset that it has
    committed. A broker that ended meanwhile may have taken the last transaction back although it had
    acknowledged it (docs/reliability.md, F4). It refuses the next one of that producer, and the lane opens again;
    without one, what was taken back would wait for the next record."""
    open_s: float = 30.0
    commit_s: float = 30.0
    """Deadline of one transaction; must be above the producer's request time-out to let it report its own error."""
    first_backoff_s: float = 0.1
    """Wait after a failure, doubled by each further one."""
    last_backoff_s: float = 5.0
    """Longest such wait. A session that committed something and lasted longer than this ends the doubling."""
    steady_s: float = 60.0
    """Any session that lasted this long does so too."""


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """End the block after so long, with a TimeoutError that says what took longer, or what the inner one says."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as exc:
        if str(exc):
            raise
        raise TimeoutError(f"{what} took longer than {seconds:g} s") from exc

"""Watches whether a broker answers this worker: what it shows is only as new as the last answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Final

from mode.utils.logging import get_logger

from retryapp.core.errors import RetryAppError
from retryapp.ports import Clock

logger = get_logger(__name__)

SILENT_S: Final = 5.0
"""Time without an answer after which the worker is not ready and its numbers are the last known ones."""
EVERY_S: Final = 2.0


class Contact:
    """When a broker answered last. `answered_s`: by the monotonic clock; -inf: not yet."""

    def __init__(self, clock: Clock, brokers: Callable[[], str], answered_s: Callable[[], float]) -> None:
        self._clock = clock
        self._brokers = brokers
        self._answered_s = answered_s

    def silent_s(self) -> float:
        """Return the seconds since the last answer; 0 before the first, which the start of the worker waits for."""
        answered_s = self._answered_s()
        return 0.0 if answered_s == -inf else max(0.0, self._clock.monotonic_s() - answered_s)

    def silence(self) -> str | None:
        """Return which broker has not answered for how long; None while one answers."""
        silent_s = self.silent_s()
        if silent_s < SILENT_S:
            return None
        brokers = self._brokers()
        who = f"brokers {brokers} have" if "," in brokers else f"broker {brokers} has"
        return f"{who} not answered for {silent_s:.0f} s"

    async def run(self, remember: Callable[[], Awaitable[object]]) -> None:
        """Log each silence once when it begins and once when it is over; call `remember` while a broker answers."""
        before: str | None = None
        while True:
            silence = self.silence()
            if silence is not None and before is None:
                logger.error("Not ready: %s; pages show the last known numbers until one answers", silence)
            elif silence is None:
                if before is not None:
                    logger.warning("A broker answers again: before, %s", before)
                with suppress(RetryAppError):  # a store that cannot be read fails its lane, which says so
                    await remember()
            before = silence
            await self._clock.sleep(EVERY_S)

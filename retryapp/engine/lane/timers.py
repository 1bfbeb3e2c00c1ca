"""The timers of a lane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """Calls functions later, each with one timer at most."""

    def __init__(self) -> None:
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def __contains__(self, call: Callable[[], None]) -> bool:
        return call in self._timers

    def begin(self, call: Callable[[], None], seconds: float) -> None:
        """Call it so much later, and not when a former timer would have."""
        self.end(call)
        self._timers[call] = asyncio.get_running_loop().call_later(seconds, self._fire, call)

    def end(self, call: Callable[[], None]) -> None:
        """End its timer, if it has one."""
        if (timer := self._timers.pop(call, None)) is not None:
            timer.cancel()

    def end_all(self) -> None:
        """End all timers."""
        for call in list(self._timers):
            self.end(call)

    def _fire(self, call: Callable[[], None]) -> None:
        del self._timers[call]
        call()

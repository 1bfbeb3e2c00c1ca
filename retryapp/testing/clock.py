"""Time and randomness under a test's control.

Wall time and monotonic time start at unlike values and can be moved apart, so that code that mixes them up fails.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from itertools import count

from typing_extensions import override

from retryapp.ports import Clock, Random

_NS = 1_000_000_000


class VirtualClock(Clock):
    """`ports.Clock` that moves by `advance`."""

    trusted = True
    known = True

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ns = 1_000 * _NS
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turns = count()
        self.anchors: list[tuple[float, float, int]] = []
        """Arguments of each call of `anchor`."""
        self._driven: dict[asyncio.AbstractEventLoop, tuple[int, Callable[[], float]]] = {}
        """By event loop: how many drive it by this clock, and its own time."""

    @override
    def wall_ms(self) -> int:
        return self._wall_ms

    @override
    def latest_ms(self) -> int:
        return self._wall_ms

    @override
    def monotonic_s(self) -> float:
        return self._monotonic_ns / _NS

    @override
    def counted_ms(self) -> float:
        return float(self._wall_ms)

    @override
    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        self.anchors.append((sent_ms, acked_ms, appended_ms))

    @property
    def sleeping(self) -> int:
        """Number of tasks in `sleep`."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_ns + round(seconds * _NS), next(self._turns), sleeper))
        await sleeper

    def advance(self, ms: int) -> None:
        """Let time pass: both times move, and tasks whose sleep is over wake at the next turn of the loop."""
        if ms < 0:
            raise ValueError(f"time cannot pass backwards ({ms} ms)")
        self._wall_ms += ms
        self._monotonic_ns += ms * (_NS // 1_000)
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ns:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock, forward or back; no time passes."""
        self._wall_ms += ms

    def drive(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Have the timers of an event loop (`asyncio.timeout`, `call_later`) follow this clock; return what ends it.

        Of several that drive it, as partitions on one clock, the last one that ends gives it its own time back.

        Raises:
            RuntimeError: another clock drives the loop; this one would stop it.
        """
        driver = getattr(loop.time, "__self__", None)
        if isinstance(driver, VirtualClock) and driver is not self:
            raise RuntimeError("another partition's clock drives this event loop: give both the same clock=")
        count, former = self._driven.get(loop, (0, loop.time))
        self._driven[loop] = count + 1, former
        if not count:
            _set_time(loop, self.monotonic_s)

        def end() -> None:
            count, former = self._driven.pop(loop)
            if count > 1:
                self._driven[loop] = count - 1, former
            else:
                _set_time(loop, former)

        return end


def only_time_wakes(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether nothing but its timers can wake a loop: there is no other thread, and no socket or pipe but its own.

    False where the loop is not asyncio's own, and does not show it.
    """
    selector = getattr(loop, "_selector", None)
    return selector is not None and len(selector.get_map()) == 1 and threading.active_count() == 1


def _set_time(loop: asyncio.AbstractEventLoop, time: Callable[[], float]) -> None:
    """Give a loop another time; its timers keep what they have left."""
    moved_s = time() - loop.time()
    loop.time = time  # type: ignore[method-assign]
    for timer in getattr(loop, "_scheduled", ()):  # asyncio's own; other loops show none
        timer._when += moved_s  # noqa: SLF001 - a timer cannot be moved otherwise


class ScriptedRandom(Random):
    """`ports.Random` that gives the listed numbers in turn, then the last one again and again."""

    def __init__(self, *numbers: float) -> None:
        if not numbers or not all(0 <= number < 1 for number in numbers):
            raise ValueError(f"expected numbers in [0, 1), got {numbers}")
        self._numbers = numbers
        self._taken = 0

    @override
    def random(self) -> float:
        number = self._numbers[min(self._taken, len(self._numbers) - 1)]
        self._taken += 1
        return number

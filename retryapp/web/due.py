"""How many records become due when: counted in the table, in a thread, up to `MOST` rows."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from retryapp.lookup.records import Facts
from retryapp.ports import PartitionInfo
from retryapp.runtime.view import RuntimeView

MOST: Final = 100_000
"""Rows that are counted before now, and from now on, over all partitions; more is shown as "100,000+"."""
KEPT_MS: Final = 5_000
"""A count is shown again for this long, so that more readers cost no more."""
WINDOWS: Final = (("minute", 60_000), ("hour", 3_600_000), ("day", 86_400_000))
_CHUNK: Final = 1_000
"""Rows per iterator: an iterator holds the store's folder, so each one is short."""


class DueCounts:
    """Counts of the rows that are due and become due soon."""

    def __init__(self, view: RuntimeView) -> None:
        self._view = view
        self._counts: dict[str, tuple[int, Facts]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, main: str, infos: Sequence[PartitionInfo], now_ms: int) -> Facts:
        """Return `{"overdue": {count, more}, "minute": …, "hour": …, "day": …}`, at most `KEPT_MS` old.

        Each of `WINDOWS` begins now and contains those before it. `more`: the real number is larger. Partitions that
        are not open are left out; `count` is None if none is open.
        """
        async with self._one_at_a_time:
            counted_ms, facts = self._counts.get(main, (-KEPT_MS, {}))
            if not 0 <= now_ms - counted_ms < KEPT_MS:
                here = [info for info in infos if info.state == "open"]
                partitions = [info.partition for info in here if info.pending != 0]
                facts = {name: {"count": None, "more": False} for name in ("overdue", *dict(WINDOWS))}
                if here:
                    facts = await asyncio.to_thread(self._count, main, partitions, now_ms)
                self._counts[main] = now_ms, facts
            return facts

    def _count(self, main: str, partitions: Sequence[int], now_ms: int) -> Facts:
        overdue = self._between(main, partitions, 0, now_ms, MOST)
        facts, ahead, start_ms = {"overdue": _amount(overdue)}, 0, now_ms
        for name, length_ms in WINDOWS:
            ahead += self._between(main, partitions, start_ms, now_ms + length_ms, MOST - ahead)
            facts[name] = _amount(ahead)
            start_ms = now_ms + length_ms
        return facts

    def _between(self, main: str, partitions: Sequence[int], start_ms: int, stop_ms: int, most: int) -> int:
        """Return how many rows are due in a span; a number above `most` is not the whole."""
        total = 0
        for partition in partitions:
            at_ms, chunk = start_ms, _CHUNK
            while total <= most:
                dues = self._view.due_times(main, partition, start_ms=at_ms, stop_ms=stop_ms, limit=chunk)
                if len(dues) < chunk:
                    total += len(dues)
                    break
                at_ms, chunk = dues[-1], chunk if dues[-1] > dues[0] else 2 * chunk  # all at one instant: look further
                total += bisect_left(dues, at_ms)
        return total


def _amount(count: int) -> Facts:
    return {"count": min(count, MOST), "more": count > MOST}

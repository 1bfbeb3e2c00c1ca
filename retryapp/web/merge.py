"""Several sorted lists as one, without keeping the event loop: for lists over all partitions of a worker."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

BREATH: Final = 16
"""After so many steps others may run; each may ask a table."""


async def merged(streams: Sequence[Iterator[T]], key: Callable[[T], Any]) -> AsyncIterator[T]:
    """Yield the items of all streams in the order of their keys.

    Args:
        streams: each sorted by key; asked for one item at a time.
        key: what to sort by; of equal ones the earlier stream's comes first.
    """
    heads: list[tuple[Any, int, T]] = []
    steps = 0

    def push(place: int) -> None:
        for item in streams[place]:
            heapq.heappush(heads, (key(item), place, item))  # places differ, so items are never compared
            return

    for place in range(len(streams)):
        push(place)
        steps += 1
        if steps % BREATH == 0:
            await asyncio.sleep(0)
    while heads:
        _, place, item = heapq.heappop(heads)
        yield item
        push(place)
        steps += 1
        if steps % BREATH == 0:
            await asyncio.sleep(0)

"""Several sorted lists as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from retryapp.web.merge import BREATH, merged


async def test_items_come_in_order_and_equal_ones_by_stream() -> None:
    """Items themselves are never compared: these could not be."""
    streams = [iter([(1, {"a": 1}), (3, {"a": 2})]), iter([]), iter([(1, {"b": 1}), (2, {"b": 2})])]
    found = [item async for item in merged(streams, lambda item: item[0])]
    assert found == [(1, {"a": 1}), (1, {"b": 1}), (2, {"b": 2}), (3, {"a": 2})]


async def test_no_more_is_asked_for_than_is_taken() -> None:
    """One item of each stream, and one for each that was taken."""
    asked = [0]

    def endless(start: int) -> Iterator[int]:
        for number in range(start, 10**9, 2):
            asked[0] += 1
            yield number

    taken = []
    async for number in merged([endless(0), endless(1)], lambda number: number):
        taken.append(number)
        if len(taken) == 5:
            break
    assert taken == [0, 1, 2, 3, 4]
    assert asked[0] <= 2 + 5


async def test_others_run_meanwhile() -> None:
    """A long list does not keep the event loop."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    total = len([item async for item in merged([iter(range(BREATH * 10))], lambda item: item)])
    other.cancel()
    assert turns[0] >= total // BREATH

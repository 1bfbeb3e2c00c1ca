"""Giving memory back: when, how often, and that the C library does it."""

from __future__ import annotations

import sys

import pytest

from retryapp.runtime.heap import GROWTH_BYTES, LOOK_S, find_trim, give_back_memory, resident_bytes

MIB = 1 << 20


class _Process:
    """A process whose size is known beforehand at each look, and which ends with the last."""

    def __init__(self, sizes: list[int], after: int | None) -> None:
        self.trimmed: list[int] = []
        self._sizes, self._after, self._look = sizes, after, 0

    async def sleep(self, seconds: float) -> None:
        assert seconds == LOOK_S
        self._look += 1
        if self._look == len(self._sizes):
            raise EOFError

    def trim(self) -> None:
        self.trimmed.append(self._look)

    def size(self) -> int:
        given_back = self._after is not None and self._look in self.trimmed
        return (self._after if given_back else self._sizes[self._look]) * MIB


async def trims(sizes: list[int], after: int | None = None) -> list[int]:
    """Return at which looks memory was given back."""
    process = _Process(sizes, after)
    with pytest.raises(EOFError):
        await give_back_memory(process, process.trim, process.size)
    return process.trimmed


async def test_memory_is_given_back_when_the_process_has_grown() -> None:
    """By enough to be worth it, counted from the least that it was since the last time."""
    step = GROWTH_BYTES // MIB
    assert await trims([100, 100 + step - 1, 100 + step, 90, 90 + step - 1, 90 + step], after=100) == [2, 5]


async def test_memory_that_is_in_use_is_not_asked_for_again() -> None:
    """A process that needs its memory pays once for each step of its growth."""
    step = GROWTH_BYTES // MIB
    assert await trims([100, 100 + step, 100 + step, 100 + step, 100 + 2 * step]) == [1, 4]


@pytest.mark.skipif(sys.platform != "linux" or find_trim() is None, reason="this C library has no malloc_trim")
def test_pages_between_what_lives_on_go_back() -> None:
    """Freed records, one in fifty of them kept: the heap keeps all of it until it is told."""
    trim = find_trim()
    assert trim is not None
    records: list[bytearray | None] = [bytearray(2_000) for _ in range(40_000)]
    for number in range(len(records)):
        if number % 50:
            records[number] = None
    before = resident_bytes()
    trim()
    assert before - resident_bytes() > 40 * MIB
    assert sum(record is not None for record in records) == 800

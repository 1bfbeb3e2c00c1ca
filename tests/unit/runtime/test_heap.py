"""Giving memory back: when, how often, and that the C library does it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from retryapp.runtime.machine.heap import GROWTH_BYTES, find_trim, give_back_memory, resident_bytes

MIB = 1 << 20


async def trims(sizes: list[int], after: int | None = None) -> list[int]:
    """Return at which looks (one per size, in MiB) memory was given back; a trim makes the size `after`."""
    look, trimmed = 0, list[int]()

    def size() -> int:
        return (after if after is not None and look in trimmed else sizes[look]) * MIB

    async def sleep(_seconds: float) -> None:
        nonlocal look
        look += 1
        if look == len(sizes):
            raise EOFError

    with pytest.raises(EOFError):
        await give_back_memory(SimpleNamespace(sleep=sleep), lambda: trimmed.append(look), size)  # type: ignore[arg-type]
    return trimmed


STEP = GROWTH_BYTES // MIB


@pytest.mark.parametrize(
    ("sizes", "after", "trimmed"),
    [
        ([100, 100 + STEP - 1, 100 + STEP, 90, 90 + STEP - 1, 90 + STEP], 100, [2, 5]),
        ([100, 100 + STEP, 100 + STEP, 100 + STEP, 100 + 2 * STEP], None, [1, 4]),
    ],
    ids=["freed", "in use"],
)
async def test_memory_is_given_back_when_the_process_has_grown(
    sizes: list[int], after: int | None, trimmed: list[int]
) -> None:
    """Counted from the least since the last time; memory in use is asked for once per step of growth."""
    assert await trims(sizes, after) == trimmed


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

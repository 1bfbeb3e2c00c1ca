"""Gives memory back that the C library keeps after it was freed.

Bursts of records leave glibc's heap full of holes: pages lie free between what lives on, and only the end of a heap
goes back to the system by itself. A worker that had parked 120,000 records was 328 MiB large, of which 138 MiB were
such holes; it was 200 MiB after one `malloc_trim`. (Fewer arenas and fixed thresholds for `mmap` and trimming keep it
smaller too, at 255 MiB, but cost every large fetch its own system calls: up to a tenth of the work of a recovery.)
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Callable
from typing import Final, Protocol

import psutil

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""How often the size of the process is looked at, which takes some microseconds."""
GROWTH_BYTES: Final = 32 << 20
"""Growth since the last time that is worth the 10 to 20 ms which it takes."""


def find_trim() -> Callable[[], object] | None:
    """Return what has the C library give free pages back; None where it has no such call (musl, macOS)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return lambda: trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


class Sleeps(Protocol):
    """As much of `ports.Clock` as waits."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


async def give_back_memory(
    clock: Sleeps,
    trim: Callable[[], object],
    size: Callable[[], int] = resident_bytes,
) -> None:
    """Give free memory back whenever the process has grown; until cancelled.

    What is in use and cannot be given back counts as no growth the next time: a process that needs its memory is not
    asked for it again and again.

    Args:
        clock: waits.
        trim: see `find_trim`; runs in a thread, where the call lets others run.
        size: of the process, bytes.
    """
    least = size()
    while True:
        await clock.sleep(LOOK_S)
        now = size()
        if now - least >= GROWTH_BYTES:
            await asyncio.to_thread(trim)
            least = size()
            logger.debug("Memory was %d MiB, is %d MiB after free pages went back", now >> 20, least >> 20)
        else:
            least = min(least, now)

"""The count of deliveries, kept outside of what is measured: memory shared by the handler and the benchmark.

The handler of every side calls `Ledger.visit`, which records the delivery with its wall time and returns whether to
fail. No framework's own counter is used. Both processes map the file; layout, 8-byte unsigned numbers in the machine's
order::

    | deliveries | done | slots | 5 x reserved | slots x (runs, first start ns, last failure ns, last start ns) |

One process writes: a worker whose handlers run on one event loop.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Self

from benchmarks.records import ABSOLUTE_FROM

_HEADER = 8
_SLOT = 4
_BYTES = 8
EARLY_TOLERANCE_MS = 1.0
"""Due times are whole milliseconds: a delivery counts as early when it comes more than this before its due time."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What became of a run's records; all zero, or the run's rate is void."""

    lost: int = 0
    """Records with fewer runs than wanted."""
    repeated: int = 0
    """Records with more runs than wanted."""
    early: int = 0
    """Redeliveries before their due time."""

    @property
    def sound(self) -> bool:
        return not (self.lost or self.repeated or self.early)


SOUND = Balance()


class Ledger:
    """One run's deliveries, in a file that `create` made. As a context manager it gives the memory back."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, path: Path, slots: int) -> Ledger:
        """Make an empty ledger with room for the records 0 to ``slots`` - 1; with none it only counts."""
        path.write_bytes(b"")
        with path.open("r+b") as file:
            file.truncate((_HEADER + slots * _SLOT) * _BYTES)
        made = cls(path)
        made._cells[2] = slots
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cells.release()
        self._map.close()

    def visit(self, value: bytes) -> int:
        """Write one delivery down.

        Returns:
            0: succeed. Above 0: fail and come back after so many milliseconds. -1: fail, the policy has the delay.
            `REJECTED`: fail for good.
        """
        cells = self._cells
        cells[0] += 1
        failures = value[10] - 48
        if cells[2]:
            at = _HEADER + int(value[:9]) * _SLOT
            runs = cells[at]
            now = time_ns()
            cells[at] = runs + 1
            cells[at + 3] = now
            if runs == 0:
                cells[at + 1] = now
            if runs < failures:
                cells[at + 2] = now
                return _wait(int(value[12:25]), now)
            cells[1] += runs == failures
            return 0
        if failures:
            return _wait(int(value[12:25]), time_ns())
        cells[1] += 1
        return 0

    @property
    def deliveries(self) -> int:
        """Runs of the handler so far."""
        return self._cells[0]

    @property
    def done(self) -> int:
        """Records that succeeded so far, each counted once (without slots: runs that succeeded)."""
        return self._cells[1]

    def first_ns(self, number: int) -> int:
        """Return when a record was delivered first, epoch nanoseconds; 0: never."""
        return self._cells[_HEADER + number * _SLOT + 1]

    def last_ns(self, number: int) -> int:
        """Return when a record was delivered last, epoch nanoseconds; 0: never."""
        return self._cells[_HEADER + number * _SLOT + 3]

    def due_ns(self, number: int, wait_ms: int) -> int:
        """Return when a record was due again: its failure plus its wait, or the absolute time that it names."""
        if wait_ms >= ABSOLUTE_FROM:
            return wait_ms * 1_000_000
        return self._cells[_HEADER + number * _SLOT + 2] + wait_ms * 1_000_000

    def lateness_ms(self, number: int, wait_ms: int) -> float:
        """Return how long after its due time a record was delivered again."""
        return (self.last_ns(number) - self.due_ns(number, wait_ms)) / 1e6

    def balance(self, waits: Mapping[int, int | None], *, runs: int) -> Balance:
        """Compare with what is wanted.

        Args:
            waits: wait of each record in milliseconds, to look for early ones; None: it was not to come back.
            runs: deliveries that each should have.
        """
        lost = repeated = early = 0
        for number, wait_ms in waits.items():
            count = self._cells[_HEADER + number * _SLOT]
            lost += count < runs
            repeated += count > runs
            if wait_ms is not None and count >= runs and self.lateness_ms(number, wait_ms) < -EARLY_TOLERANCE_MS:
                early += 1
        return Balance(lost, repeated, early)


def _wait(wait_ms: int, now_ns: int) -> int:
    if wait_ms == 0:
        return -1
    return wait_ms if wait_ms < ABSOLUTE_FROM else max(1, wait_ms - now_ns // 1_000_000)

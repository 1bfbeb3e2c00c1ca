"""The disk of a simulated machine: what was written and not synced is lost from some point on when the power goes."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

from typing_extensions import override

from retryapp.core.errors import DiskFullError
from retryapp.testing.tables import Disk

_SYNC_EVERY = 8
"""Batches that may not be on the disk yet."""


class SimDisk(Disk):
    """The stores of one machine. A process that dies leaves all that it wrote, a power cut some of it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.full = 0
        """So many writes fail from now on."""
        self._synced: defaultdict[str, int] = defaultdict(int)
        self._used: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """When a store had all that its topic had, and how many batches it had then."""

    @override
    def write(self, store: str, batch: tuple[Any, ...]) -> None:
        if self.full:
            self.full -= 1
            raise DiskFullError("the simulated disk", "no space left")
        super().write(store, batch)
        if len(self.stores[store]) - self._synced[store] > _SYNC_EVERY:
            self.sync(store)

    @override
    def sync(self, store: str) -> None:
        self._synced[store] = len(self.stores[store])

    @override
    def drop(self, store: str) -> None:
        super().drop(store)
        self._synced.pop(store, None)
        self._used.pop(store, None)

    def use(self, store: str, now_ms: int) -> None:
        """Note that a store has all that its topic has."""
        self._used[store].append((len(self.stores[store]), now_ms))

    def used_ms(self, store: str) -> int | None:
        """Return when a store had that last; None for a new one."""
        return max((at_ms for _, at_ms in self._used[store]), default=None)

    def lose_power(self, random: Random) -> None:
        """Lose what was not synced, from some point on."""
        for store, batches in self.stores.items():
            del batches[random.randint(self._synced[store], len(batches)) :]
            self._used[store] = [used for used in self._used[store] if used[0] <= len(batches)]

    def lose(self) -> None:
        """Lose everything: another machine."""
        self.stores.clear()
        self._synced.clear()
        self._used.clear()

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

    def lose_power(self, random: Random) -> None:
        """Lose what was not synced, from some point on."""
        for store, batches in self.stores.items():
            del batches[random.randint(self._synced[store], len(batches)) :]

    def lose(self) -> None:
        """Lose everything: another machine."""
        self.stores.clear()
        self._synced.clear()

"""The disk of a simulated machine: what was written and not synced is lost from some point on when the power goes.

A store is a journal of batches. Opening it replays them; a process that dies leaves them all, a power cut leaves those
that were synced and some of the others, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from retryapp.core.deduplicate import Seen, encode_seen
from retryapp.core.errors import DiskFullError
from retryapp.core.rows import ROW_KEY_BYTES, parse_row_key
from retryapp.ports import DeadRow, Removal, Row
from retryapp.testing.tables import MemoryDeadLetterTable, MemoryPendingTable, MemorySeenTable

_SYNC_EVERY = 8
"""Batches that may not be on the disk yet."""


@dataclass(slots=True)
class Journal:
    """What a store has written."""

    batches: list[tuple[Any, ...]] = field(default_factory=list)
    synced: int = 0


class Disk:
    """The stores of one machine, by name."""

    def __init__(self) -> None:
        self.journals: dict[str, Journal] = {}
        self.full = 0
        """So many writes fail from now on."""

    def journal(self, name: str) -> Journal:
        """Return what a store has written so far."""
        return self.journals.setdefault(name, Journal())

    def write(self, journal: Journal, batch: tuple[Any, ...]) -> None:
        """Write a batch, whole or not at all.

        Raises:
            DiskFullError: there is no room.
        """
        if self.full:
            self.full -= 1
            raise DiskFullError("the simulated disk", "no space left")
        journal.batches.append(batch)
        if len(journal.batches) - journal.synced > _SYNC_EVERY:
            journal.synced = len(journal.batches)

    def lose_power(self, random: Random) -> None:
        """Lose what was not synced, from some point on."""
        for journal in self.journals.values():
            kept = random.randint(journal.synced, len(journal.batches))
            del journal.batches[kept:]

    def lose(self) -> None:
        """Lose everything: another machine."""
        self.journals.clear()


class SimPendingStore(MemoryPendingTable):
    """`ports.PendingStore` on a simulated disk."""

    dropped: str | None = None

    def __init__(self, disk: Disk, name: str) -> None:
        super().__init__()
        self._disk, self._name = disk, name
        self._journal = disk.journal(name)
        self._last_written: int | None = None
        for puts, removes, changelog_offset, written in self._journal.batches:
            super().write(puts, removes, changelog_offset)
            self._last_written = written

    def write(self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None) -> None:
        """See `ports.PendingTable.write`."""
        self._keep(puts, removes, changelog_offset, written=changelog_offset)

    def _keep(
        self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None, *, written: int | None
    ) -> None:
        self._disk.write(self._journal, (puts, removes, changelog_offset, written))
        super().write(puts, removes, changelog_offset)

    @property
    def last_written(self) -> int | None:
        """See `ports.PendingStore.last_written`."""
        return self._last_written

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        """See `ports.PendingStore.recover`."""
        puts: dict[bytes, Row] = {}
        removes: dict[bytes, Removal] = {}
        for key, value in records:
            if len(key) != ROW_KEY_BYTES:
                continue
            if value is None:
                puts.pop(key, None)
                removes[key] = Removal(key, "?")
            else:
                removes.pop(key, None)
                puts[key] = Row(key, value, "?")
        self._keep([*puts.values()], [*removes.values()], next_offset - 1, written=self._last_written)

    def recovered(self) -> None:
        """See `ports.PendingStore.recovered`."""
        self._last_written = None
        self._keep((), (), None, written=None)

    def touch(self, now_ms: int) -> None:
        """See `ports.PendingStore.touch`."""

    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        """See `ports.PendingStore.due_times`."""
        times = (parse_row_key(key).due_at_ms for key in self._keys)
        return [time for time in times if start_ms <= time < stop_ms][:limit]

    def rows(self) -> dict[bytes, bytes]:
        """Return all rows."""
        return {key: row.value for key, row in self._rows.items()}

    def close(self) -> None:
        """See `ports.PendingStore.close`: closing flushes."""
        self._journal.synced = len(self._journal.batches)

    def drop(self) -> None:
        """See `ports.PendingStore.drop`."""
        self._disk.journals.pop(self._name, None)


class SimSeenStore(MemorySeenTable):
    """`ports.SeenStore` on a simulated disk."""

    dropped: str | None = None

    def __init__(self, disk: Disk, name: str) -> None:
        super().__init__()
        self._disk, self._name = disk, name
        self._journal = disk.journal(name)
        for rows, next_offset, now_ms in self._journal.batches:
            super().write(rows, next_offset, now_ms)

    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        """See `ports.SeenTable.write`."""
        self._disk.write(self._journal, (rows, next_offset, now_ms))
        super().write(rows, next_offset, now_ms)

    def rows(self) -> dict[bytes, bytes]:
        """Return all rows, as they are in the changelog."""
        return {identity: encode_seen(row) for identity, row in self._rows.items()}

    def close(self) -> None:
        """See `ports.SeenStore.close`: closing flushes."""
        self._journal.synced = len(self._journal.batches)

    def drop(self) -> None:
        """See `ports.SeenStore.drop`."""
        self._disk.journals.pop(self._name, None)


class SimDeadLetterStore(MemoryDeadLetterTable):
    """`ports.DeadLetterStore` that begins anew with each process: it only answers questions."""

    dropped: str | None = None

    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        """See `ports.DeadLetterTable.write`."""
        super().write(rows, next_offset)

    def close(self) -> None:
        """See `ports.DeadLetterStore.close`."""

    def drop(self) -> None:
        """See `ports.DeadLetterStore.drop`."""

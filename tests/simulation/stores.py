"""What must hold of the tables of a lane: each is its changelog, and nothing is in it when all is at rest (I7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from retryapp.core.causes import cause_bytes
from retryapp.core.failed import row_failed_of
from retryapp.core.record import Record
from retryapp.core.rows import failure_in
from simulation.damaging import Damages
from simulation.lives import base_of
from simulation.story import Origin, must

HELD_MS = 253_402_300_799_999
"""Due time of a row that waits for others of its sequence."""


class Stores:
    """What the changelogs of a handler come to, by partition."""

    def __init__(self, damages: Damages) -> None:
        self.rows: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self._seen: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        """Of the changelog of seen events."""
        self._damages = damages

    def waiting(self, partition: int) -> list[bytes]:
        return list(self.rows[partition])

    def logged(self, record: Record) -> bool:
        """Take a row of the changelog, or the end of one; tell whether its record has had none."""
        key, rows = record.key or b"", self.rows[record.partition]
        is_new = key not in rows
        if record.value is None:
            rows.pop(key, None)
        else:
            rows[key] = record.value
        return is_new

    def saw(self, record: Record) -> None:
        """Take a row of the changelog of seen events."""
        self._seen[record.partition][record.key or b""] = record.value or b""

    def recovered(self, partition: int, rows: Mapping[bytes, bytes]) -> None:
        """A lane has opened with these rows, whose keys are queue and due time, and identity."""
        found = {key[8:]: value for key, value in rows.items()}
        must(found == self.rows[partition], "I7", (partition, -1), "the store is not the changelog")
        sorted_so = all(int.from_bytes(key[2:8], "big") in (due_ms_of(value), 0) for key, value in rows.items())
        must(sorted_so and len(found) == len(rows), "I7", (partition, -1), "a row has a key that is not its own")
        for identity, value in found.items():
            origin = origin_of(partition, identity)
            as_said = origin in self._damages.ever or _failure_is_as_said(value)
            must(as_said, "I12", origin, "its row is counted under another failure than its headers say")

    def remembered(self, partition: int, rows: Mapping[bytes, bytes], *, taken_back: bool) -> None:
        """A lane that is open, and at rest, has these rows of seen events; histories are shorter than the window.

        Where the broker took a row back, its offset went with it: the lane still knows the event, and the next one
        handles the record and writes it down.
        """
        logged = self._seen[partition]
        same = logged.items() <= dict(rows).items() if taken_back else dict(rows) == logged
        must(same, "I7", (partition, -1), "the table of seen events is not its changelog")

    def at_rest(self) -> None:
        for partition, rows in self.rows.items():
            must(not rows, "I7", (partition, -1), f"{len(rows)} rows wait for ever")


def origin_of(partition: int, identity: bytes) -> Origin:
    return partition, int.from_bytes(identity[-8:], "big") + base_of(identity)


def due_ms_of(row: bytes) -> int:
    return int.from_bytes(row[4:12], "big")


def _failure_is_as_said(row: bytes) -> bool:
    said, told = row_failed_of(row), failure_in(row)
    return told == (None if said is None else (cause_bytes(said.cause_id), said.attempts, said.last_ms))

"""One sequence of a partition: its records without a final outcome; and the first of some rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from retryapp.core.row_keys import origin_offset
from retryapp.engine.delivery.run import Run


class Line:
    """The records of one sequence without a final outcome, each kind in order."""

    __slots__ = ("failed", "first", "older", "rows", "running", "waiting")

    def __init__(self) -> None:
        self.running = False
        """The head has a claim or a run."""
        self.first = False
        """That is its first delivery, and it has no row."""
        self.failed = False
        """The head has a row with a due time."""
        self.rows: deque[bytes] = deque()
        """Identities of rows, in the table or on their way to it."""
        self.waiting: deque[Run] = deque()
        """First deliveries in the window; nearly always behind all rows."""
        self.older: list[bytes] = []
        """Rows that end with the next outcome (`engine.partition.latest`)."""

    @property
    def head(self) -> str:
        """The record that others wait for, for people."""
        return f"offset {origin_offset(self.rows[0])}"


def up_to(rows: Iterable[tuple[bytes, bytes]], limit: int, max_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return the first rows, `limit` at most; only the last one may bring their values to `max_bytes`."""
    found: list[tuple[bytes, bytes]] = []
    if limit > 0:
        for row in rows:
            found.append(row)
            max_bytes -= len(row[1])
            if len(found) >= limit or max_bytes <= 0:
                break
    return found

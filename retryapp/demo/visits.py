"""The service's own log of deliveries: one JSON line per request, written before its answer leaves.

Arrival and outcome are the service's own observations; attempt and due time are the worker's claims.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

ATTEMPT_HEADER: Final = "X-Retry-Attempt"
DUE_HEADER: Final = "X-Retry-Due-Ms"


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Outcome(StrEnum):
    """What became of a request."""

    DONE = "200"
    NOT_FOUND = "404"
    UNPROCESSABLE = "422"
    UNAVAILABLE = "503"
    DOWN = "502"
    TIMEOUT = "timeout"
    RESET = "reset"

    @property
    def is_final(self) -> bool:
        """True where no retry is expected to follow."""
        return self in {Outcome.DONE, Outcome.NOT_FOUND, Outcome.UNPROCESSABLE}


class Visit(BaseModel):
    """One request, as the service saw it."""

    model_config = ConfigDict(frozen=True)

    flight_id: int
    attempt: int
    """Number of the delivery as the client claims it."""
    due_at_ms: int | None
    """When the client claims this delivery was due, epoch milliseconds; None for a first delivery."""
    started_ms: int
    """Arrival at the service, epoch milliseconds."""
    ended_ms: int
    """When the outcome was decided: before the answer left, or when a hanging client went away."""
    outcome: Outcome
    retry_after_ms: int | None = None
    """What the answer asked the client to wait."""


def append_visit(path: Path, visit: Visit) -> None:
    """Write one line; the operating system has it when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(visit.model_dump_json() + "\n")


class VisitTail:
    """Follows a log that is still being written. It need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Visit]:
        """Return the visits of all lines that were completed since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            block = file.read()
        complete = block.rfind(b"\n") + 1
        self._position += complete
        return [Visit.model_validate_json(line) for line in block[:complete].splitlines()]

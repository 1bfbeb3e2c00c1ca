"""The service's own log of deliveries: one JSON line per request, appended when its outcome is known.

It is the count that owes nothing to the code under test: what a worker says about a delivery (attempt, failure id, due
time) stands beside what the service saw itself (arrival, outcome). A line is on disk before the answer leaves, so an
outcome that a worker acted on is always in the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

ATTEMPT_HEADER = "X-Retry-Attempt"
FAILURE_ID_HEADER = "X-Retry-Failure-Id"
DUE_HEADER = "X-Retry-Due-Ms"
WORKER_HEADER = "X-Worker"


class Outcome(StrEnum):
    """What became of a request."""

    DONE = "200"
    NOT_FOUND = "404"
    UNPROCESSABLE = "422"
    UNAVAILABLE = "503"
    TIMEOUT = "timeout"
    RESET = "reset"

    @property
    def is_final(self) -> bool:
        """True where a retry is not expected to follow."""
        return self in {Outcome.DONE, Outcome.NOT_FOUND, Outcome.UNPROCESSABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request, as the service saw it."""

    flight_id: int
    attempt: int
    """Number of the delivery as the client told it; 1 where it told none."""
    failure_id: str | None
    """The record's failure id as the client told it."""
    due_at_ms: int | None
    """When the client says this delivery was due, epoch milliseconds; none at the first one."""
    started_ms: int
    """Arrival at the service, epoch milliseconds."""
    ended_ms: int
    """When the outcome was decided: before the answer left, or when a hanging client went away."""
    outcome: Outcome
    retry_after_ms: int | None = None
    """What the answer asked the client to wait."""
    worker: str | None = None
    """Which worker asked, as it told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a request's headers claim about its delivery."""

    attempt: int
    failure_id: str | None
    due_at_ms: int | None
    worker: str | None


def read_claims(headers: Mapping[str, str]) -> Claims:
    """Read the headers of a request.

    Raises:
        ValueError: attempt or due time is no whole number.
    """
    due = headers.get(DUE_HEADER)
    return Claims(
        attempt=int(headers.get(ATTEMPT_HEADER, "1")),
        failure_id=headers.get(FAILURE_ID_HEADER),
        due_at_ms=None if due is None else int(due),
        worker=headers.get(WORKER_HEADER),
    )


def encode_visit(visit: Visit) -> str:
    """Return the visit as one line, without the line's end."""
    return json.dumps(asdict(visit), separators=(",", ":"))


def decode_visit(line: str) -> Visit:
    """Read one line back.

    Raises:
        ValueError: the line is no visit.
    """
    try:
        fields = json.loads(line)
        return Visit(**{**fields, "outcome": Outcome(fields["outcome"])})
    except (TypeError, KeyError, ValueError) as error:
        message = f"not a line of the service's log: {line!r}"
        raise ValueError(message) from error


class VisitLog:
    """The writing side: appends, never rewrites."""

    def __init__(self, path: Path) -> None:
        """Open the log for appending."""
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def append(self, visit: Visit) -> None:
        """Write one line; it is with the operating system when this returns."""
        self._file.write(encode_visit(visit) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class VisitTail:
    """The reading side: follows a log that is still being written."""

    def __init__(self, path: Path) -> None:
        """Follow the log at `path` from its beginning; it need not exist yet."""
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
        return [decode_visit(line) for line in block[:complete].decode("utf-8").splitlines()]

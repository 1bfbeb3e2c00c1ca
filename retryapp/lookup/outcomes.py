"""What became of a command, by where it was written: the control topic has the command, the events its outcome."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from retryapp.core.errors import DamagedEventError
from retryapp.core.lifecycle import Commanded, decode_event
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_record
from retryapp.lookup.reading import Reading

QUEUED: Final = "no worker has answered yet: the command waits 15 minutes for the one that has its partition"


def outcome_of(told: Commanded | None) -> Literal["queued", "refused", "done"]:
    """Return what has become of a command by what a worker has said of it; None: nothing yet."""
    if told is None:
        return "queued"
    return "refused" if told.refused else "done"


class Sent(BaseModel):
    """A command as it was sent, whatever it is about."""

    id: str = ""
    verb: str = "unknown"
    failure_id: str = ""


class Outcome(NamedTuple):
    """A command, and what a worker has said of it; None: nothing yet."""

    sent: Sent
    told: Commanded | None
    complete: bool
    """Whether all was read that may say something."""


def read_outcome(
    connection: KafkaConnection, topology: HandlerTopology, partition: int, offset: int, go_on: Callable[[], bool]
) -> Outcome | None:
    """Return what became of a command; None where there is none, or none any more. Blocks; `go_on` ends it with False.

    Events are read from its time on: of one that a worker took at once few, else all that came since.
    """
    record = read_record(connection, topology.control, partition, offset)
    if record is None:
        return None
    sent = Sent()
    with suppress(ValidationError):
        sent = Sent.model_validate_json(record.value or b"")
    reading = Reading(connection, go_on)
    for found in reading.since(topology.events, [partition], record.timestamp_ms):
        with suppress(DamagedEventError):  # of a newer worker
            event = decode_event(found.value or b"")
            if isinstance(event, Commanded) and event.offset == offset:
                return Outcome(sent, event, complete=True)
    return Outcome(sent, None, reading.complete)

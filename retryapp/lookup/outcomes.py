"""What became of a command, by where it was written: the control topic has the command, the events its outcome."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from pydantic import BaseModel, ValidationError

from retryapp.core.errors import DamagedEventError
from retryapp.core.lifecycle import Commanded, decode_event
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_record, read_topic
from retryapp.kafka.positions import Positions

_ASK_EVERY: Final = 500
SKEW_MS: Final = 60_000
"""How far clocks of those who write may differ."""


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
    place = topology.events, partition
    start = Positions(connection).at_time([place], max(0, record.timestamp_ms - SKEW_MS))[place]
    if start is not None:
        events = read_topic(connection, topology.events, partitions=[partition], start={partition: start})
        for looked, found in enumerate(events, 1):
            if looked % _ASK_EVERY == 0 and not go_on():
                return Outcome(sent, None, complete=False)
            with suppress(DamagedEventError):  # of a newer worker
                event = decode_event(found.value or b"")
                if isinstance(event, Commanded) and event.offset == offset:
                    return Outcome(sent, event, complete=True)
    return Outcome(sent, None, complete=True)

"""Sends commands to the workers of a group, and waits for what they say of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from retryapp.core.control import Command
from retryapp.core.errors import DamagedEventError
from retryapp.core.lifecycle import Commanded, decode_event
from retryapp.core.record import parse_failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.reader import read_topic
from retryapp.kafka.writer import write_records

WAIT_S: Final = 30.0
"""How long an outcome is waited for, unless somebody says otherwise."""
_LOOK_S: Final = 0.2


def send_commands(
    connection: KafkaConnection, topology: HandlerTopology, commands: Sequence[Command], *, wait_s: float = WAIT_S
) -> Mapping[str, Commanded]:
    """Send commands about records of one handler; blocks.

    Returns:
        The outcome of each command, by its id. One that is missing is queued: no worker has its partition now. After
        `core.control.COMMAND_AGE_MS` it is refused.

    Raises:
        DamagedMetadataError: a failure id is none.
        TopicMissingError: the group has no control topic: no worker of this version has started yet.
        BrokerUnreachableError: no broker answered; some of the commands may have been sent.
    """
    places = {command.id: parse_failure_id(command.failure_id)[1].partition for command in commands}
    partitions = sorted(set(places.values()))
    starts = {number: kept.stop for number, kept in KafkaAdmin(connection).offsets(topology.events, partitions).items()}
    records = [command.to_record(topology.control, places[command.id]) for command in commands]
    write_records(connection, records, doing=f"write to topic {topology.control}", topic=topology.control)
    outcomes: dict[str, Commanded] = {}
    until_s = time.monotonic() + wait_s
    while len(outcomes) < len(places):
        for record in read_topic(connection, topology.events, partitions=partitions, start=starts):
            starts[record.partition] = record.offset + 1
            try:
                event = decode_event(record.value or b"")
            except DamagedEventError:  # of a newer worker
                continue
            if isinstance(event, Commanded) and event.command in places:
                outcomes[event.command] = event
        if time.monotonic() >= until_s:
            break
        if len(outcomes) < len(places):
            time.sleep(_LOOK_S)
    return outcomes

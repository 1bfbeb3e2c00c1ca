"""Sends commands to the workers of a group, and waits for what they say of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final

from retryapp.core.control import Command
from retryapp.core.errors import BrokerUnreachableError, DamagedEventError
from retryapp.core.jobs import HandlerCommand, JobCommand
from retryapp.core.lifecycle import Commanded, decode_event
from retryapp.core.record import parse_failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin, reach
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.reader import follow_topic
from retryapp.kafka.writer import write_records, write_together

WAIT_S: Final = 30.0
"""How long an outcome is waited for, unless somebody says otherwise."""


def reach_first(connection: KafkaConnection, _topology: HandlerTopology) -> None:
    """Ask for an answer before commands are sent; blocks for a few seconds where there is none.

    Raises:
        BrokerUnreachableError: no broker answered, so nothing was sent.
    """
    with _saying("nothing was sent"):
        reach(connection)


def send_commands(
    connection: KafkaConnection,
    topology: HandlerTopology,
    commands: Sequence[Command],
    *,
    wait_s: float = WAIT_S,
    outcomes: dict[str, Commanded] | None = None,
    places: dict[str, tuple[int, int]] | None = None,
) -> Mapping[str, Commanded]:
    """Send commands about records of one handler, and wait for their outcomes; blocks.

    `outcomes` gets each as it comes, so it has them also if this raises. `places` gets partition and offset of each
    command on the control topic, by its id (`lookup.outcomes`), where the broker says them.

    Returns:
        The outcome of each command, by its id. One that is missing is queued: no worker has its partition now. After
        `core.control.COMMAND_AGE_MS` it is refused.

    Raises:
        DamagedMetadataError: a failure id is none.
        TopicMissingError: the group has no control topic: no worker of this version has started yet.
        BrokerUnreachableError: no broker answered; it says whether commands were sent.
    """
    numbers = {command.id: parse_failure_id(command.failure_id)[1].partition for command in commands}
    records = [command.to_record(topology.control, numbers[command.id]) for command in commands]
    partitions = sorted(set(numbers.values()))

    def write() -> None:
        offsets = write_records(connection, topology.control, records)
        if places is not None:
            for command, offset in zip(commands, offsets, strict=True):
                if offset is not None:
                    places[command.id] = numbers[command.id], offset

    outcomes = {} if outcomes is None else outcomes
    wanted = {(number, name) for name, number in numbers.items()}
    for _, event in _told(connection, topology, partitions, write, wanted, wait_s):
        outcomes[event.command] = event
    return outcomes


def send_to_all(
    connection: KafkaConnection,
    topology: HandlerTopology,
    commands: Mapping[int, JobCommand | HandlerCommand],
    *,
    wait_s: float,
) -> Mapping[int, Commanded]:
    """Send one command to several partitions of one handler, to all or none; blocks.

    Several senders have one transactional id, so one begins after the other: all partitions see their commands in the
    same order.

    Returns:
        The outcomes by partition. One that is missing is queued.

    Raises:
        TopicMissingError: the group has no control topic.
        BrokerUnreachableError: no broker answered; it says whether the command was sent. Sent again, it does no harm.
        AccessDeniedError: we may not write there, or not use the transactional id.
    """
    records = [command.to_record(topology.control, partition) for partition, command in commands.items()]
    wanted = {(partition, command.id) for partition, command in commands.items()}
    with _saying("nothing was sent"):
        KafkaAdmin(connection).offsets(topology.control, commands)  # it is there

    def write() -> None:
        write_together(connection, topology.control, records)

    return dict(_told(connection, topology, sorted(commands), write, wanted, wait_s))


def _told(
    connection: KafkaConnection,
    topology: HandlerTopology,
    partitions: Sequence[int],
    write: Callable[[], None],
    wanted: Collection[tuple[int, str]],
    wait_s: float,
) -> Iterator[tuple[int, Commanded]]:
    """Write, and yield the outcomes of commands (`wanted`: partition and id) as they come, with their partitions."""
    admin = KafkaAdmin(connection)
    with _saying("nothing was sent"):
        starts = {number: kept.stop for number, kept in admin.offsets(topology.events, partitions).items()}
    with _saying("it is not known whether the command was sent"):
        write()
    with _saying("the command was sent, and its outcome is not known"):
        yield from _outcomes(connection, topology, starts, wanted, wait_s)


def _outcomes(
    connection: KafkaConnection,
    topology: HandlerTopology,
    starts: Mapping[int, int],
    wanted: Collection[tuple[int, str]],
    wait_s: float,
) -> Iterator[tuple[int, Commanded]]:
    missing = {*wanted}
    until_s = time.monotonic() + wait_s
    with closing(follow_topic(connection, topology.events, starts)) as events:
        for record in events:
            if record is not None:
                with suppress(DamagedEventError):  # of a newer worker
                    event = decode_event(record.value or b"")
                    if isinstance(event, Commanded) and (record.partition, event.command) in wanted:
                        missing.discard((record.partition, event.command))
                        yield record.partition, event
            elif not missing:
                return
            elif time.monotonic() >= until_s:
                break
    reach(connection)


@contextmanager
def _saying(what: str) -> Iterator[None]:
    """Have the error of a broker that does not answer, and an interrupt, say what was sent before it."""
    try:
        yield
    except BrokerUnreachableError as error:
        raise BrokerUnreachableError(error.bootstrap, f"{what}: {error.problem}") from error
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(what) from error

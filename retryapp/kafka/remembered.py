"""Reads what the partitions of a handler remember of commands."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from retryapp.core import marks
from retryapp.core.errors import DamagedCommandError
from retryapp.core.jobs import (
    HandlerCommand,
    HandlerVerb,
    JobCommand,
    JobVerb,
    Steering,
    decode_command,
    read_steering,
)
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.errors import DamagedProgressError
from retryapp.kafka.reader import read_topic
from retryapp.kafka.writer import write_together

C = TypeVar("C", HandlerCommand, JobCommand)
TAILS: Final = 100, 2_000
"""Offsets: a transaction ends with the record that is looked for."""


def remembered(connection: KafkaConnection, topology: HandlerTopology) -> dict[int, Steering]:
    """Return what the partitions of a handler remember of commands.

    It is in the last progress record of each partition of the changelog, so no worker is asked.
    """
    return {number: read_steering(noted.steering) for number, noted in progress_records(connection, topology).items()}


class Known(NamedTuple):
    """What the partitions of a handler remember, and what waits for a worker of them."""

    steerings: dict[int, Steering]
    queued: dict[int, list[Queued[HandlerCommand]]]
    """By partition the commands about the handler that no worker has obeyed yet, in order.

    Without them a look at a handler that was just paused, while no worker runs, would find it not paused.
    """
    starts: dict[str, dict[int, Queued[JobCommand]]]
    """By job and partition: its start, where no worker has obeyed it and nobody has cancelled it.

    Without them a job that has ended on all others would look as if it were over.
    """


class Queued(NamedTuple, Generic[C]):
    """A command that waits for a worker of its partition."""

    command: C
    sent_ms: int
    """By the broker's time."""


def remembered_and_queued(connection: KafkaConnection, topology: HandlerTopology) -> Known:
    """Return the same, and the commands about the handler and starts of jobs that no worker has obeyed yet."""
    progress = progress_records(connection, topology)
    steerings = {number: read_steering(noted.steering) for number, noted in progress.items()}
    queued, starts = dict[int, list[Queued[HandlerCommand]]](), dict[str, dict[int, Queued[JobCommand]]]()
    for record in _not_obeyed(connection, topology, progress, steerings):
        with suppress(DamagedCommandError):  # a worker refuses it
            command = decode_command(record.value)
            if isinstance(command, HandlerCommand):
                queued.setdefault(record.partition, []).append(Queued(command, record.timestamp_ms))
            elif isinstance(command, JobCommand) and command.verb is JobVerb.START:
                starts.setdefault(command.job, {})[record.partition] = Queued(command, record.timestamp_ms)
            elif isinstance(command, JobCommand) and command.verb is JobVerb.CANCEL:
                starts.get(command.job, {}).pop(record.partition, None)
    return Known(steerings, dict(sorted(queued.items())), starts)


def _not_obeyed(
    connection: KafkaConnection,
    topology: HandlerTopology,
    progress: Mapping[int, marks.ProgressRecord],
    steerings: Mapping[int, Steering],
) -> Iterator[Record]:
    state = KafkaAdmin(connection).describe_topics([topology.control]).get(topology.control)
    if state is None:  # no worker has started yet
        return
    starts = {number: marks.parse_control(noted.control, state.topic_id) for number, noted in progress.items()}
    obeyed = {(number, at) for number, each in steerings.items() for at in each.ahead.get(state.topic_id, ())}
    for record in read_topic(connection, topology.control, start=starts):
        if (record.partition, record.offset) not in obeyed:
            yield record


def progress_records(
    connection: KafkaConnection,
    topology: HandlerTopology,
    topic_id: str = "",
    *,
    tails: Iterable[int] = (*TAILS, 2**63),
) -> dict[int, marks.ProgressRecord]:
    """Return the last progress record of each partition of the changelog that has one in the last of `tails`.

    `topic_id` is that of the main topic now.

    Raises:
        DamagedProgressError: one cannot be read.
    """
    topic = topology.pending_changelog
    todo = KafkaAdmin(connection).offsets(topic)
    last: dict[int, Record] = {}
    for tail in tails:
        starts = {number: max(kept.start, kept.stop - tail) for number, kept in todo.items()}
        for record in read_topic(connection, topic, partitions=todo, start=starts):
            if record.key == marks.PROGRESS:
                last[record.partition] = record
        todo = {number: kept for number, kept in todo.items() if number not in last and kept.start < starts[number]}
        if not todo:
            break
    return {number: read_progress_of(record, topic_id, topology.main) for number, record in sorted(last.items())}


def read_progress_of(record: Record, topic_id: str, main: str) -> marks.ProgressRecord:
    """Read a progress record of a changelog; `topic_id`: that of the main topic now.

    Raises:
        DamagedProgressError: it cannot be read.
    """
    try:
        noted = marks.read_progress(record.value or b"", topic_id, main)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DamagedProgressError(record.topic, record.partition, record.offset, str(error)) from error
    return noted._replace(written_ms=record.timestamp_ms)


def pass_on(connection: KafkaConnection, topology: HandlerTopology, partitions: Iterable[int]) -> None:
    """Have partitions that are added be paused, or their circuits forced open, where somebody has done that to others.

    That goes for commands that wait for a worker, too. What a rule has paused is a matter of that partition.
    """
    steerings, queued, _ = remembered_and_queued(connection, topology)
    for number, commands in queued.items():
        steering = steerings.setdefault(number, Steering())
        for each in commands:
            steering.obey(each.command, each.sent_ms, revision=0)
    known, records = steerings.values(), []
    circuits = sorted({name for each in known for name in each.forced_open})
    for verb, circuit, levels in (
        (HandlerVerb.PAUSE, "", [each.paused for each in known]),
        *((HandlerVerb.OPEN, name, [each.forced_open.get(name) for each in known]) for name in circuits),
    ):
        if (level := next((each for each in levels if each is not None and not each.record), None)) is not None:
            command = HandlerCommand(id=secrets.token_hex(8), verb=verb, circuit=circuit, by=level.by, why=level.why)
            records += [command.to_record(topology.control, number) for number in partitions]
    if records:
        write_together(connection, topology.control, records)

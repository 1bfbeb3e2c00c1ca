"""Reads what the partitions of a handler remember of commands."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

from retryapp.core import marks
from retryapp.core.jobs import HandlerCommand, HandlerVerb, Steering, read_steering
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.reader import read_topic
from retryapp.kafka.writer import write_together

_TAIL_OFFSETS: Final = 2_000  # a transaction ends with the record that is looked for


def remembered(connection: KafkaConnection, topology: HandlerTopology) -> dict[int, Steering]:
    """Return what the partitions of a handler remember of commands.

    It is in the last progress record of each partition of the changelog, so no worker is asked.
    """
    topic = topology.pending_changelog
    kepts = KafkaAdmin(connection).offsets(topic)
    last: dict[int, bytes] = {}
    starts = {number: max(kept.start, kept.stop - _TAIL_OFFSETS) for number, kept in kepts.items()}
    for record in read_topic(connection, topic, start=starts):
        if record.key == marks.PROGRESS:
            last[record.partition] = record.value or b""
    if missing := [number for number, kept in kepts.items() if number not in last and kept.start < starts[number]]:
        for record in read_topic(connection, topic, partitions=missing):
            if record.key == marks.PROGRESS:
                last[record.partition] = record.value or b""
    return {number: read_steering(marks.read_progress(value).steering) for number, value in sorted(last.items())}


def pass_on(connection: KafkaConnection, topology: HandlerTopology, partitions: Iterable[int]) -> None:
    """Have partitions that are added be paused, or their circuits forced open, where somebody has done that to others.

    What a rule has paused is a matter of that partition.
    """
    known = remembered(connection, topology).values()
    records = []
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

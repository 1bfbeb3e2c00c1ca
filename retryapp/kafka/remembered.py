"""Reads what the partitions of a handler remember of commands."""

from __future__ import annotations

from typing import Final

from retryapp.core import marks
from retryapp.core.jobs import Steering, read_steering
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.reader import read_topic

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

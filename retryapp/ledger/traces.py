"""Traces: the contents of the topics about one record that has failed.

Each copy of a record on a topic of ours, each row and each event of success is one trace: a station of the record's
way, the attempt that failed last there (of an event: the one that succeeded), and its place. Only the headers that
identify a record and its attempt are read; all others may be damaged.

Packed, a trace takes 26 bytes, so that a ledger of a million failed records fits into memory:

    | replays u32 | attempt u32 | station u8, with 0x80 when loose | topic u8 | offset i64 | timestamp_ms i64 |
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedEventError, DamagedMetadataError, DamagedRowError, UnreadableRecordsError
from retryapp.core.headers import (
    OUR_HEADERS,
    RETRY_ATTEMPT,
    RETRY_ERROR_MESSAGE,
    RETRY_ERROR_TYPE,
    RETRY_GROUP,
    RETRY_REASON,
    RETRY_REPLAYS,
    HeaderReader,
)
from retryapp.core.lifecycle import Progress, Skipped, Succeeded, decode_event
from retryapp.core.metadata import MAX_COUNT
from retryapp.core.record import Headers, Origin, Record, parse_failure_id
from retryapp.core.rows import decode_row, identity_of, origin_offset

_PACKED: Final = struct.Struct("<IIBBqq")
_LOOSE: Final = 0x80
_RANGE: Final = re.compile(r"offsets? (\d+)(?: to (\d+))? of ")


class Station(IntEnum):
    """A place on a record's way; in the order in which one attempt passes them."""

    RETRY = 0
    ROW = 1
    DEAD = 2
    SUCCEEDED = 3
    SKIPPED = 4
    """Skipped as a duplicate; without an attempt, so number 0."""


class Trace(NamedTuple):
    """One sign of a record. Sorts along the record's way: replays, attempt, station."""

    replays: int
    """How often it had been replayed."""
    attempt: int
    """The attempt that failed last; of `SUCCEEDED` the one that succeeded."""
    station: Station
    topic: int
    """Index into `Topics.names`."""
    offset: int
    timestamp_ms: int
    """The broker's."""
    loose: bool = False
    """Its headers are damaged: the numbers above are a guess."""

    @property
    def step(self) -> tuple[int, int, Station]:
        """Published once, by one transaction."""
        return self.replays, self.attempt, self.station


def pack(trace: Trace) -> bytes:
    """Write a trace in the layout of the module's text."""
    replays, attempt, station, topic, offset, timestamp_ms, loose = trace
    return _PACKED.pack(replays, attempt, station | _LOOSE if loose else station, topic, offset, timestamp_ms)


def unpack(raw: bytes) -> list[Trace]:
    """Read concatenated packed traces; sorted along the record's way."""
    return sorted(
        Trace(replays, attempt, Station(station & ~_LOOSE), topic, offset, timestamp_ms, bool(station & _LOOSE))
        for replays, attempt, station, topic, offset, timestamp_ms in _PACKED.iter_unpack(raw)
    )


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a handler, by index: main, retry topics, dead letters, events, changelog."""

    group: str
    names: tuple[str, ...]
    main: str = field(init=False)
    retry: range = field(init=False)
    dlq: int = field(init=False)
    events: int = field(init=False)
    changelog: int = field(init=False)

    def __post_init__(self) -> None:
        """Number them from the end: there may be several retry topics."""
        count = len(self.names)
        facts = {"main": self.names[0], "retry": range(1, count - 3), "dlq": count - 3, "events": count - 2,
                 "changelog": count - 1}  # fmt: skip
        for name, value in facts.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Told:
    """The contents of one record of our topics: the failed record it belongs to, or why none is known."""

    trace: Trace
    topic_id: str = ""
    """Of the main topic of its first delivery."""
    offset: int = -1
    """Its offset there."""
    last_offset: int = -1
    """Of a dead letter for a damaged batch: the last offset of that."""
    nobody: str | None = None
    """Why it belongs to no record of this handler."""


def told_by(record: Record, station: Station, topic: int, topics: Topics) -> Told:
    """Read a record of a retry or dead-letter topic."""
    return _told(record.headers, record.partition, station, (topic, record.offset, record.timestamp_ms), topics)


def told_by_row(record: Record, topic_id: str, topics: Topics) -> Told:
    """Read a row of the changelog; a damaged one belongs to the offset in its key, if that is of main topic `topic_id`.

    So does one that a newer version wrote.
    """
    key = record.key or b""
    try:
        headers = decode_row(record.value or b"").headers
    except DamagedRowError:
        headers = ()
    place = topics.changelog, record.offset, record.timestamp_ms
    told = _told(headers, record.partition, Station.ROW, place, topics)

    def is_of(topic_id: str, offset: int) -> bool:
        return key == identity_of(Origin(topics.main, topic_id, record.partition, offset))

    if told.nobody is None:
        return told if is_of(told.topic_id, told.offset) else Told(told.trace, nobody="its key is another record's")
    offset = origin_offset(key)
    return Told(told.trace._replace(loose=True), topic_id, offset) if is_of(topic_id, offset) else told


def told_by_event(record: Record, topics: Topics) -> Told | Progress | None:
    """Read an event: of one record, of a range of offsets, or None for events that the ledger does not need.

    Raises:
        DamagedEventError: it is of an unknown type.
    """
    event = decode_event(record.value or b"")
    if isinstance(event, Progress):
        return event if event.main == topics.main and event.group == topics.group else None
    if not isinstance(event, (Succeeded, Skipped)):
        return None
    try:
        group, origin = parse_failure_id(event.failure_id)
    except DamagedMetadataError as error:
        raise DamagedEventError(str(error)) from error
    step = 0, 0, Station.SKIPPED
    if isinstance(event, Succeeded):
        step = min(event.replays, MAX_COUNT), min(event.attempt, MAX_COUNT), Station.SUCCEEDED
    trace = Trace(*step, topics.events, record.offset, record.timestamp_ms)
    return _named(group, origin, record.partition, trace, topics)


def _told(headers: Headers, partition: int, station: Station, place: tuple[int, int, int], topics: Topics) -> Told:
    read = HeaderReader({name: value for name, value in headers if name in OUR_HEADERS and value is not None})
    attempt = replays = 0
    try:
        attempt = read.number(RETRY_ATTEMPT)
        replays = read.number(RETRY_REPLAYS) if RETRY_REPLAYS in read.found else 0
        loose = max(attempt, replays) > MAX_COUNT
    except DamagedMetadataError:
        loose = True
    damaged = station is Station.DEAD and read.found.get(RETRY_REASON) == DeadReason.DAMAGED.encode()
    topic, offset, timestamp_ms = place
    trace = Trace(
        min(replays, MAX_COUNT), min(attempt, MAX_COUNT), station, topic, offset, timestamp_ms, loose or damaged
    )
    try:
        group, origin = read.name(RETRY_GROUP), read.origin()
    except DamagedMetadataError as error:
        return Told(trace, nobody=f"its headers do not identify a record: {error}")
    told = _named(group, origin, partition, trace, topics)
    return replace(told, last_offset=_range(read, origin.offset)) if damaged else told


def _named(group: str, origin: Origin, partition: int, trace: Trace, topics: Topics) -> Told:
    if group != topics.group:
        return Told(trace, nobody=f"it belongs to group {group}")
    if origin.partition != partition:
        return Told(trace, nobody=f"it belongs to {origin.text}, another partition")
    if origin.topic != topics.main:
        return Told(trace, nobody=f"it belongs to {origin.text}, another topic")
    return Told(trace, origin.topic_id, origin.offset)


def _range(read: HeaderReader, first: int) -> int:
    """Return the last offset that a dead letter covers; only its text contains it."""
    try:
        if not read.text(RETRY_ERROR_TYPE).endswith(f".{UnreadableRecordsError.__name__}"):
            return first
        found = _RANGE.match(read.text(RETRY_ERROR_MESSAGE))
    except DamagedMetadataError:
        return first
    return first if found is None or found[2] is None else int(found[2])

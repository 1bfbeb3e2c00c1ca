"""Traces: the contents of the topics about one record that has failed.

Each copy of a record on a topic of ours, each row and each event of success is one trace: a station of the record's
way, the delivery that ended last there, and its place. Only the headers that identify a record and its delivery are
read; all others may be damaged.

Packed, a trace takes 30 bytes, so that a ledger of a million failed records fits into memory:

    | delivery u32 | station u8, 0x80: loose | topic u8 | attempt u32 | replays u32 | offset i64 | timestamp_ms i64 |
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from retryapp.core.classify import DeadReason
from retryapp.core.control import MarkKind, is_mark, mark_of
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
from retryapp.core.lifecycle import Discarded, Held, Progress, Skipped, Succeeded, Superseded, decode_event
from retryapp.core.metadata import MAX_COUNT
from retryapp.core.record import Headers, Origin, Record, parse_failure_id
from retryapp.core.row_keys import identity_of, origin_offset
from retryapp.core.rows import PendingRow, decode_row
from retryapp.core.salvage import readable

_PACKED: Final = struct.Struct("<IBBIIqq")
_LOOSE: Final = 0x80
_RANGE: Final = re.compile(r"offsets? (\d+)(?: to (\d+))? of ")


class Station(IntEnum):
    """A place on a record's way; in the order in which one delivery passes them."""

    HELD = 0
    """Waiting, undelivered, for earlier records of its sequence: delivery 0."""
    RETRY = 1
    ROW = 2
    DEAD = 3
    SUCCEEDED = 4
    SKIPPED = 5
    """Skipped: as a duplicate, without a delivery, so number 0; or by the delivery of that number."""
    DISCARDED = 6
    """Dead, without a dead-letter topic."""
    FAILED = 7
    """A dead letter whose handler gave up; it stays where it is."""
    SUPERSEDED = 8
    """Replaced by a newer record: while it waited, or as its last delivery failed."""
    REPLAYED = 9
    """A mark of its dead letter, as those that follow: it was sent back."""
    RECOVERED = 10
    """Sent back and done."""
    SET_ASIDE = 11
    """Discarded by somebody."""
    RESTORED = 12
    HANDLED = 13
    """Its handler of dead letters is done with it."""
    LEFT = 14
    """Its handler of dead letters has skipped it, or given up: it is as it was."""


_STATIONS: Final = {
    MarkKind.DISCARDED: Station.SET_ASIDE,
    MarkKind.SKIPPED: Station.LEFT,
    MarkKind.FAILED: Station.LEFT,
}
"""Of marks whose names are those of other stations."""


class Trace(NamedTuple):
    """One sign of a record. Sorts along the record's way: delivery, station."""

    delivery: int
    """The delivery that ended last; never starts again."""
    station: Station
    topic: int
    """Index into `Topics.names`."""
    attempt: int
    """The attempt that failed last; of `SUCCEEDED` the one that succeeded."""
    replays: int
    """How often it had been replayed."""
    offset: int
    timestamp_ms: int
    """The broker's."""
    loose: bool = False
    """Its headers are damaged: the numbers above are a guess."""

    @property
    def step(self) -> tuple[int, Station]:
        """Published once, by one transaction."""
        return self.delivery, self.station


def pack(trace: Trace) -> bytes:
    delivery, station, *place, loose = trace
    return _PACKED.pack(delivery, station | _LOOSE if loose else station, *place)


def unpack(raw: bytes | bytearray) -> list[Trace]:
    """Read concatenated packed traces; sorted along the record's way."""
    return sorted(
        Trace._make((delivery, Station(station & ~_LOOSE), *place, bool(station & _LOOSE)))
        for delivery, station, *place in _PACKED.iter_unpack(raw)
    )


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a handler, by index: main, retry topics, dead-letter topics, events, changelog."""

    group: str
    names: tuple[str, ...]
    letters: int = 1
    """How many dead-letter topics there are."""
    main: str = field(init=False)
    retry: range = field(init=False)
    dlqs: range = field(init=False)
    events: int = field(init=False)
    changelog: int = field(init=False)

    def __post_init__(self) -> None:
        """Number them from the end: there may be several retry topics."""
        count = len(self.names)
        first = count - 2 - self.letters
        facts = {"main": self.names[0], "retry": range(1, first), "dlqs": range(first, count - 2),
                 "events": count - 2, "changelog": count - 1}  # fmt: skip
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
    on_hold: bool = False
    """A row that is not tried before somebody releases it."""
    nobody: str | None = None
    """Why it belongs to no record of this handler."""


def told_by(record: Record, station: Station, topic: int, topics: Topics) -> Told:
    if station is Station.DEAD and is_mark(record.headers):
        return _told_by_mark(record, topic, topics)
    return _told(record.headers, record.partition, station, (topic, record.offset, record.timestamp_ms), topics)


def _told_by_mark(record: Record, topic: int, topics: Topics) -> Told:
    mark = mark_of(record.headers, record.value)
    unknown = Trace(0, Station.RESTORED, topic, 0, 0, record.offset, record.timestamp_ms)
    if mark is None:
        return Told(unknown, nobody="it is a mark of a dead letter that cannot be read")
    try:
        group, origin = parse_failure_id(mark.failure_id)
    except DamagedMetadataError as error:
        return Told(unknown, nobody=f"it is a mark of nobody: {error}")
    station = _STATIONS.get(mark.mark) or Station[mark.mark.name]
    delivery, replays = min(mark.delivery, MAX_COUNT), min(mark.replays, MAX_COUNT)
    trace = Trace(delivery, station, topic, 0, replays, record.offset, record.timestamp_ms)
    return _named(group, origin, record.partition, trace, topics)


def told_by_row(record: Record, topic_id: str, topics: Topics) -> Told:
    """Read a row of the changelog; a damaged one belongs to the offset in its key, if that is of main topic `topic_id`.

    So does one that a newer version wrote.
    """
    key = record.key or b""
    try:
        row = decode_row(record.value or b"")
    except DamagedRowError:
        row = PendingRow(None, None, ())
    place = topics.changelog, record.offset, record.timestamp_ms
    told = _told(row.headers, record.partition, Station.ROW, place, topics)
    told = replace(told, on_hold=row.held_by not in (None, "sequence"))

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
    if not isinstance(event, (Succeeded, Skipped, Held, Discarded, Superseded)):
        return None
    try:
        group, origin = parse_failure_id(event.failure_id)
    except DamagedMetadataError as error:
        raise DamagedEventError(str(error)) from error
    if isinstance(event, Held):
        trace = Trace(0, Station.HELD, topics.events, 0, 0, record.offset, record.timestamp_ms)
        return _named(group, origin, record.partition, trace, topics)
    station = Station[event.kind.upper()]
    delivery, attempt, replays = (min(n, MAX_COUNT) for n in (event.delivery, event.attempt, event.replays))
    damaged = isinstance(event, Discarded) and event.reason == DeadReason.DAMAGED
    trace = Trace(delivery, station, topics.events, attempt, replays, record.offset, record.timestamp_ms, damaged)
    told = _named(group, origin, record.partition, trace, topics)
    if isinstance(event, Discarded) and damaged:
        return replace(told, last_offset=_range(event.error_type, event.error_message, origin.offset))
    return told


def _told(headers: Headers, partition: int, station: Station, place: tuple[int, int, int], topics: Topics) -> Told:
    read = HeaderReader({name: value for name, value in headers if name in OUR_HEADERS and value is not None})
    delivery = attempt = replays = 0
    try:
        attempt, delivery = read.number(RETRY_ATTEMPT), read.delivery()
        replays = read.number(RETRY_REPLAYS) if RETRY_REPLAYS in read.found else 0
        loose = not attempt <= delivery <= MAX_COUNT or replays > MAX_COUNT
    except DamagedMetadataError:
        loose = True
    damaged = station is Station.DEAD and read.found.get(RETRY_REASON) == DeadReason.DAMAGED.encode()
    topic, offset, timestamp_ms = place
    delivery, attempt, replays = (min(number, MAX_COUNT) for number in (delivery, attempt, replays))
    trace = Trace(delivery, station, topic, attempt, replays, offset, timestamp_ms, loose or damaged)
    try:
        group, origin = read.name(RETRY_GROUP), read.origin()
    except DamagedMetadataError as error:
        return Told(trace, nobody=f"its headers do not identify a record: {error}")
    told = _named(group, origin, partition, trace, topics)
    if not damaged:
        return told
    kind, text = (readable(partial(read.text, header), "") for header in (RETRY_ERROR_TYPE, RETRY_ERROR_MESSAGE))
    return replace(told, last_offset=_range(kind, text, origin.offset))


def _named(group: str, origin: Origin, partition: int, trace: Trace, topics: Topics) -> Told:
    if group != topics.group:
        return Told(trace, nobody=f"it belongs to group {group}")
    if origin.partition != partition:
        return Told(trace, nobody=f"it belongs to {origin.text}, another partition")
    if origin.topic != topics.main:
        return Told(trace, nobody=f"it belongs to {origin.text}, another topic")
    return Told(trace, origin.topic_id, origin.offset)


def _range(error_type: str, message: str, first: int) -> int:
    """Return the last offset that a dead letter covers; only its text contains it."""
    if not error_type.endswith(f".{UnreadableRecordsError.__name__}"):
        return first
    found = _RANGE.match(message)
    return first if found is None or found[2] is None else int(found[2])

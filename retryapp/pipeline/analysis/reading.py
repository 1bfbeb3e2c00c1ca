"""Reads archived records by core's decoders, in Spark's Python workers: unreadable data is reported, never raised."""

from __future__ import annotations

import gc
import itertools
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from retryapp.core import headers as H
from retryapp.core.control import Verb, mark_of
from retryapp.core.errors import DamagedEventError, DamagedMetadataError, RetryAppError
from retryapp.core.lifecycle import (
    Commanded,
    Held,
    Progress,
    RecordEvent,
    Skipped,
    Superseded,
    decode_event,
    newer_event,
)
from retryapp.core.metadata import MAX_COUNT, MAX_EPOCH_MS
from retryapp.core.record import Headers, failure_id, parse_failure_id, parse_origin
from retryapp.core.topology import TopicRole
from retryapp.lookup.failures import NOT_RUN
from retryapp.pipeline.analysis.schemas import READINGS, SAID
from retryapp.pipeline.schemas import HEADERS

DLQ: Final = TopicRole.DLQ.value
EVENTS: Final = TopicRole.EVENTS.value
MARK: Final = "mark-"
"""What the kind of a mark of a dead letter begins with; ``MarkKind`` follows."""
MOVED: Final = f"{MARK}moved"
"""A command that was obeyed: what waits is due at another time than its record on the retry topic says."""
NEWER: Final = "newer-"
"""What the kind of an event begins with of which a newer retryapp alone can read more than its kind, which follows."""
_OF_TIMES: Final = frozenset({Verb.RETRY_NOW, Verb.RESCHEDULE, Verb.HOLD, Verb.RELEASE})
NO_HEADERS: Final = "no retry headers: somebody else wrote this record"
BAD_MARK: Final = "it is a mark of a dead letter that cannot be read"

_NAMES: Final = tuple(SAID.fieldNames())
_ORIGIN: Final = ("topic_id", "partition", "offset")
_TYPES: Final[pa.StructType] = to_arrow_type(SAID)
_NOTHING: Final = (None,) * len(_NAMES)
_MOST_COUNTED: Final = 10**12  # in one event: a sum of millions of them is still a long


def _most(field: pa.Field) -> int:
    if field.type == pa.int32():
        return 2**31 - 1
    if field.name.endswith("offset"):
        return 2**63 - 1
    return MAX_EPOCH_MS if field.name.endswith("_ms") else _MOST_COUNTED


_MOST: Final = {field.name: _most(field) for field in _TYPES if pa.types.is_integer(field.type)}
"""Greatest numbers of an event: JSON has no limit, and one that no column holds would end every analysis."""

Said = tuple[Any, ...]


def read_record(station: str, headers: Headers, value: bytes | None) -> Said:
    """Return what a record says: the fields of ``schemas.SAID``."""
    try:
        return _read_event(value or b"") if station == EVENTS else _read_failure(station, headers, value)
    except RetryAppError as error:
        newer = newer_event(value or b"") if station == EVENTS else None
        return (*_NOTHING[:-1], str(error)) if newer is None else (f"{NEWER}{newer[0]}", *_NOTHING[1:])


def _read_failure(station: str, headers: Headers, value: bytes | None) -> Said:
    """Read the headers that the analysis needs: all of them, with traceback and history, take two to five times."""
    read = H.reader_of(headers)
    if read is None:
        return (*_NOTHING[:-1], NO_HEADERS)
    if H.RETRY_MARK in read.found:
        return _read_mark(headers, value)
    read.version()
    number, name, place = read.number, read.name, read.origin()
    reason = name(H.RETRY_REASON) if station == DLQ else None
    attempt, delivery = number(H.RETRY_ATTEMPT), read.delivery()
    replays = number(H.RETRY_REPLAYS) if H.RETRY_REPLAYS in read.found else 0
    due_at_ms = None if station == DLQ else number(H.RETRY_DUE_MS)
    times = read.timestamp(H.RETRY_ORIGIN_TIMESTAMP_MS), number(H.RETRY_STARTED_MS), number(H.RETRY_LAST_FAILED_MS)
    if not (
        0 < max(delivery, replays) <= MAX_COUNT and attempt <= delivery and max(*times, due_at_ms or 0) <= MAX_EPOCH_MS
    ):
        raise DamagedMetadataError(H.RETRY_ATTEMPT, "it, or another number of this record, is out of range")
    was_run = reason not in NOT_RUN or H.RETRY_WORKER in read.found
    return (
        station, failure_id(name(H.RETRY_GROUP), place), place.topic_id, place.partition, place.offset, times[0],
        replays, attempt, delivery, times[1] if was_run else None, times[2], None, due_at_ms,
        read.optional_name(H.RETRY_TIER), reason, name(H.RETRY_POLICY), name(H.RETRY_ERROR_TYPE),
        read.text(H.RETRY_ERROR_MESSAGE), name(H.RETRY_FINGERPRINT), *_NOTHING[19:],
    )  # fmt: skip


def _read_mark(headers: Headers, value: bytes | None) -> Said:
    mark = mark_of(headers, value)
    if mark is None:
        return (*_NOTHING[:-1], BAD_MARK)
    return _mark(f"{MARK}{mark.mark}", mark.failure_id, replays=mark.replays, delivery=mark.delivery)


def _mark(kind: str, name: str, *, replays: int = 0, delivery: int = 0) -> Said:
    _, place = parse_failure_id(name)
    numbers = None, min(replays, MAX_COUNT), None, min(delivery, MAX_COUNT)
    return (kind, name, place.topic_id, place.partition, place.offset, *numbers, *_NOTHING[9:])


def _read_event(value: bytes) -> Said:
    event = decode_event(value)
    if isinstance(event, Commanded) and event.refused is None and event.verb in _OF_TIMES:
        return _mark(MOVED, event.failure_id)
    if not isinstance(event, RecordEvent | Progress):
        return (event.kind, *_NOTHING[1:])
    facts = vars(event)
    if isinstance(event, Progress):
        facts = facts | {"failed": event.failed + event.held}  # both leave a trace, by which they are counted
    else:
        place = parse_origin(event.origin)
        facts = facts | {name: getattr(place, name) for name in _ORIGIN}
    if isinstance(event, Skipped):
        facts |= {"ended_ms": event.at_ms, "reason": event.why}
    elif isinstance(event, Superseded):
        facts |= {"ended_ms": event.at_ms}
    elif isinstance(event, Held):
        facts |= {"replays": 0, "attempt": 0, "delivery": 0, "ended_ms": event.at_ms}
    for name, most in _MOST.items():
        if abs(facts.get(name, 0)) > most:
            raise DamagedEventError(f"{name}: {facts[name]} is out of range")
    return tuple(map(facts.get, _NAMES))


def read_batch(station: pa.Array, headers: pa.Array, value: pa.Array) -> pa.Array:
    if not len(station):
        return pa.nulls(0, _TYPES)
    gc.disable()  # it would walk a batch's many objects again and again; none of them is in a cycle
    try:
        read = list(map(read_record, station.to_pylist(), header_tuples(headers), value.to_pylist()))
        columns = [pa.array(column, field.type) for column, field in zip(zip(*read, strict=True), _TYPES, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(_TYPES))
    finally:
        gc.enable()


def header_tuples(headers: pa.Array) -> list[Headers]:
    """Return headers as core has them, one tuple for each record; none for null."""
    entries = headers.flatten()
    encoded = entries.field(0).dictionary_encode()  # few names: one object for each, whose hash is known
    known = encoded.dictionary.to_pylist()
    pairs = list(zip(map(known.__getitem__, encoded.indices.to_pylist()), entries.field(1).to_pylist(), strict=True))
    ends = itertools.accumulate(headers.value_lengths().fill_null(0).to_pylist(), initial=0)
    return [tuple(pairs[begin:end]) for begin, end in itertools.pairwise(ends)]


def readings_of(records: DataFrame) -> DataFrame:
    """Return what rows of the archive say: ``schemas.READINGS``, one row for each."""
    is_event = F.col("station") == F.lit(EVENTS)
    marked = F.array_contains("headers.key", H.RETRY_MARK)  # null where it has none at all
    is_mark = (F.col("station") == F.lit(DLQ)) & F.coalesce(marked, F.lit(False))
    none = F.array().cast(HEADERS)  # not null: for each row Arrow's writer goes over all nulls before it anew
    make: Any = arrow_udf  # its types do not know a plain function of arrays
    read = make(read_batch, SAID)
    columns: dict[str, Any] = {
        "life": F.col("topic_id"),
        "found_partition": F.col("partition"),
        "found_offset": F.col("offset"),
        "key_hash": F.when(~is_event & ~is_mark, F.col("key_hash")),  # the others' key is the failure id
        "said": read(
            F.col("station"),
            F.when(is_event, none).otherwise(F.col("headers")),
            F.when(is_event | is_mark, F.col("value")),
        ),
    }
    return records.select(*(columns.get(name, F.col(name)).alias(name) for name in READINGS.fieldNames()))

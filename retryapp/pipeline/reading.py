"""Reads records by core's decoders, in Spark's Python workers: whatever is unreadable is said, never raised."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from retryapp.core.errors import RetryAppError
from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import PolicyUsed, Progress, Succeeded, decode_event
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers
from retryapp.core.topology import TopicRole
from retryapp.pipeline.schemas import EVENT, METADATA, READING

if TYPE_CHECKING:
    from pyspark.sql import Column

AnyEvent = Succeeded | PolicyUsed | Progress
EVENTS: Final = TopicRole.EVENTS.value
NO_HEADERS: Final = "no retry headers: somebody else wrote this record"

_METADATA: Final = to_arrow_type(METADATA)
_EVENT: Final = to_arrow_type(EVENT)
_READING: Final = to_arrow_type(READING)


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read of one record; all None for a station that is read by nobody."""

    failure_id: str | None = None
    metadata: RetryMetadata | None = None
    event: AnyEvent | None = None
    unreadable: str | None = None


def read_record(station: str, headers: Headers, value: bytes | None) -> Reading:
    """Read one record of a station.

    Args:
        station: ``retry``, ``dlq`` or ``events``.
        headers: all headers of the record.
        value: its value; looked at on the events station only.
    """
    try:
        if station == EVENTS:
            event = decode_event(value or b"")
            return Reading(failure_id=getattr(event, "failure_id", None), event=event)
        metadata = decode_metadata(headers)
    except RetryAppError as error:
        return Reading(unreadable=str(error))
    if metadata is None:
        return Reading(unreadable=NO_HEADERS)
    return Reading(failure_id=metadata.failure_id, metadata=metadata)


def read_batch(station: pa.Array, headers: pa.Array, value: pa.Array) -> pa.Array:
    """Read a batch of records.

    Args:
        station: string.
        headers: list<struct<key: string, value: binary>>; null for no headers.
        value: binary; may be null where the station is not ``events``.

    Returns:
        A struct array as ``schemas.READING`` has it, as long as the arguments.
    """
    read = [
        read_record(*record)
        for record in zip(station.to_pylist(), header_tuples(headers), value.to_pylist(), strict=True)
    ]
    columns = [
        pa.array([reading.failure_id for reading in read], pa.string()),
        _structs([reading.metadata for reading in read], _METADATA),
        _structs([reading.event for reading in read], _EVENT),
        pa.array([reading.unreadable for reading in read], pa.string()),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_READING))


def header_tuples(headers: pa.Array) -> list[Headers]:
    """Return headers as core has them, one tuple for each record."""
    entries = headers.flatten()
    pairs = list(zip(entries.field(0).to_pylist(), entries.field(1).to_pylist(), strict=True))
    ends = pa.compute.cumulative_sum(headers.value_lengths().fill_null(0)).to_pylist()
    return [tuple(pairs[begin:end]) for begin, end in itertools.pairwise([0, *ends])]


def _structs(values: Sequence[Any], kind: pa.StructType) -> pa.Array:
    """Return objects as structs of their attributes; null for None, and for attributes that an object does not have."""
    columns = [_column(values, field) for field in kind]
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    found = [getattr(value, field.name, None) for value in values]
    if pa.types.is_struct(field.type):
        return _structs(found, field.type)
    if pa.types.is_list(field.type):
        parts = [part for entry in found if entry for part in entry]
        ends = itertools.accumulate((len(entry) if entry else 0 for entry in found), initial=0)
        nulls = pa.array([entry is None for entry in found], pa.bool_())
        return pa.ListArray.from_arrays(
            pa.array(list(ends), pa.int32()), _structs(parts, field.type.value_type), type=field.type, mask=nulls
        )
    return pa.array(found, field.type)


def read_columns(station: Column, headers: Column, value: Column) -> Column:
    """Return a struct column ``schemas.READING`` for three columns: string, headers, binary."""
    make: Any = arrow_udf  # its types do not know a plain function of arrays
    reading: Column = make(read_batch, READING)(station, headers, value)
    return reading

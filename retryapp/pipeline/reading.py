"""Reads records by core's decoders, in Spark's Python workers: unreadable data is reported, never raised."""

from __future__ import annotations

import gc
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from retryapp.core.errors import RetryAppError
from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import decode_event, newer_event
from retryapp.core.record import Headers
from retryapp.core.topology import TopicRole
from retryapp.pipeline.schemas import EVENT, METADATA, READING

EVENTS: Final = TopicRole.EVENTS.value
NO_HEADERS: Final = "no retry headers: somebody else wrote this record"

_METADATA: Final = to_arrow_type(METADATA)
_EVENT: Final = to_arrow_type(EVENT)
_READING: Final = to_arrow_type(READING)


def _read_record(station: str, headers: Headers, value: bytes | None) -> tuple[Any, ...]:
    """Return failure id, metadata, the fields of the event's kind, and why it is unreadable."""
    try:
        if station == EVENTS:
            fields = vars(decode_event(value or b""))
            return fields.get("failure_id"), None, fields, None
        metadata = decode_metadata(headers)
    except RetryAppError as error:
        newer = newer_event(value or b"") if station == EVENTS else None
        if newer is not None:
            return None, None, dict(zip(("kind", "v"), newer, strict=True)), None
        return None, None, None, str(error)
    if metadata is None:
        return None, None, None, NO_HEADERS
    return metadata.failure_id, metadata, None, None


def read_batch(station: pa.Array, headers: pa.Array, value: pa.Array) -> pa.Array:
    """Read a batch of records."""
    if station.null_count == len(station):
        return pa.nulls(len(station), _READING)
    if station.null_count:
        wanted = station.is_valid()
        read_ones = read_batch(station.filter(wanted), headers.filter(wanted), value.filter(wanted))
        return _spread(read_ones, wanted.to_pylist())
    with _no_collection():
        read = list(map(_read_record, station.to_pylist(), header_tuples(headers), value.to_pylist()))
        failure_ids, metadata, events, unreadable = zip(*read, strict=True)
        columns = [
            pa.array(failure_ids, pa.string()),
            _structs(metadata, _METADATA),
            _structs(events, _EVENT),
            pa.array(unreadable, pa.string()),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(_READING))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking a batch's many objects again and again; none of them is in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def header_tuples(headers: pa.Array) -> list[Headers]:
    """Return headers as core has them, one tuple for each record; none for null."""
    entries = headers.flatten()
    encoded = entries.field(0).dictionary_encode()  # few names: one object for each, whose hash is known
    known = encoded.dictionary.to_pylist()
    pairs = list(zip(map(known.__getitem__, encoded.indices.to_pylist()), entries.field(1).to_pylist(), strict=True))
    ends = itertools.accumulate(headers.value_lengths().fill_null(0).to_pylist(), initial=0)
    return [tuple(pairs[begin:end]) for begin, end in itertools.pairwise(ends)]


def _structs(values: Sequence[Any], kind: pa.StructType) -> pa.Array:
    """Return objects or mappings as structs of their fields; null for None, and for what a mapping does not have."""
    there = [value for value in values if value is not None]
    if not there:
        return pa.nulls(len(values), kind)
    packed = pa.StructArray.from_arrays([_column(there, field) for field in kind], fields=list(kind))
    if len(there) == len(values):
        return packed
    return _spread(packed, [value is not None for value in values])


def _spread(packed: pa.Array, there: Sequence[bool]) -> pa.Array:
    numbers = itertools.count()
    return packed.take(pa.array([next(numbers) if is_there else None for is_there in there], pa.int32()))


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    name = field.name
    if isinstance(values[0], Mapping):
        found = [value.get(name) for value in values]
    else:
        found = list(map(operator.attrgetter(name), values))
    if pa.types.is_struct(field.type):
        return _structs(found, field.type)
    if pa.types.is_list(field.type):
        parts = list(itertools.chain.from_iterable(found))
        ends = itertools.accumulate(map(len, found), initial=0)
        return pa.ListArray.from_arrays(
            pa.array(list(ends), pa.int32()), _structs(parts, field.type.value_type), type=field.type
        )
    return pa.array(found, field.type)


def read_columns(station: Column, headers: Column, value: Column) -> Column:
    """Return a struct column ``schemas.READING`` for three columns: string, headers, binary."""
    make: Any = arrow_udf  # its types do not know a plain function of arrays
    reading: Column = make(read_batch, READING)(station, headers, value)
    return reading

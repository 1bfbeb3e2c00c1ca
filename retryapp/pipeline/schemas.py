"""The tables of the lake, column by column.

``metadata`` and ``event`` are derived from core's own types, so that a field added there is a column here.
"""

from __future__ import annotations

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from pyspark.sql import types as T

from retryapp.core.lifecycle import PolicyUsed, Progress, Succeeded
from retryapp.core.metadata import RetryMetadata

SCHEMA_VERSION: Final = 1  # version of the tables that is written; older ones (none yet) are read

EVENT_TYPES: Final = (Succeeded, PolicyUsed, Progress)


def struct(text: str) -> T.StructType:
    """Return a struct of ``name type`` pairs with commas between."""
    made = T.StructType()
    for pair in text.split(", "):
        name, kind = pair.split()
        made.add(name, kind)
    return made


def table(text: str, **nested: T.DataType) -> T.StructType:
    """Return a table's schema: one column a line, ``name type comment``; ``nested`` are types by name."""
    schema = T.StructType()
    for line in text.strip().splitlines():
        name, kind, comment = line.split(maxsplit=2)
        schema.add(name, nested.get(kind, kind), metadata={"comment": comment})
    return schema


def _spark_type(hint: Any) -> T.DataType:
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return T.ArrayType(_spark_type(get_args(hint)[0]))
    plain = {bool: T.BooleanType(), int: T.LongType(), str: T.StringType()}
    return plain[hint] if hint in plain else _struct(hint)


def _struct(kind: type) -> T.StructType:
    hints = get_type_hints(kind)
    return T.StructType([T.StructField(each.name, _spark_type(hints[each.name])) for each in fields(kind)])


def _event_struct() -> T.StructType:
    columns = {"kind": T.StringType(), "v": T.LongType()} | {
        name: T.LongType() if field.annotation is int else T.StringType()
        for kind in EVENT_TYPES
        for name, field in kind.model_fields.items()
        if name not in {"kind", "v"}
    }
    return T.StructType([T.StructField(name, column) for name, column in columns.items()])


METADATA: Final = _struct(RetryMetadata)

EVENT: Final = _event_struct()

READING: Final = (
    T.StructType().add("failure_id", "string").add("metadata", METADATA).add("event", EVENT).add("unreadable", "string")
)

HEADERS: Final = T.ArrayType(struct("key string, value binary"))

RECORDS: Final = table(
    """
    cluster_id string Kafka's cluster id
    topic_id string first 8 characters of the topic id, as in retry-origin
    epoch integer 1 for the first life of the topic's name, one more for each re-creation
    topic string name of the topic
    partition integer partition number
    offset long order within topic_id and partition; has gaps, so nothing is counted by it
    timestamp_ms long the broker's time of arrival, epoch milliseconds
    date date its day in UTC
    key binary key bytes; null differs from empty
    value binary value bytes; null differs from empty
    headers HEADERS all headers in their order, ours included
    key_hash string salted SHA-256 of the key, in hex; by it a key is erased
    group string consumer group
    main string main topic of the handler
    station string retry, dlq or events
    failure_id string group/topic@id/partition/offset of the first delivery
    metadata METADATA stations retry and dlq: what our headers say
    event EVENT station events: what the event says; fields of other kinds are null
    unreadable string why metadata or event could not be read; null where it could
    run_id string the run that wrote the row
    """,
    HEADERS=HEADERS,
    METADATA=METADATA,
    EVENT=EVENT,
)

GAPS: Final = struct(
    "cluster_id string, group string, topic_id string, epoch integer, topic string, partition integer, "
    "from_offset long, to_offset long, reason string, found_ms long, run_id string"
)
"""Offsets that were not read; ``to_offset`` is exclusive; reasons: retention, re-created, deleted, in-doubt."""

ERASURES: Final = struct("key_hash string, erased_ms long, ended_ms long")
"""Records of the key that arrived until ``erased_ms`` are not kept; ``ended_ms`` is null while the erasure runs."""

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

SCHEMA_VERSION: Final = 1
"""Version of the tables that is written; older ones (none yet) are read."""

EVENT_TYPES: Final = (Succeeded, PolicyUsed, Progress)


def _spark_type(hint: Any) -> T.DataType:
    """Return the column type of a field of core's."""
    if isinstance(hint, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return T.ArrayType(_spark_type(get_args(hint)[0]))
    if hint is bool:
        return T.BooleanType()
    if hint is int:
        return T.LongType()
    if hint is str:
        return T.StringType()
    return _struct(hint)


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
"""What our headers say: the fields of ``RetryMetadata`` under their names."""

EVENT: Final = _event_struct()
"""What a lifecycle event says: the fields of all kinds together."""

READING: Final = T.StructType(
    [
        T.StructField("failure_id", T.StringType()),
        T.StructField("metadata", METADATA),
        T.StructField("event", EVENT),
        T.StructField("unreadable", T.StringType()),
    ]
)
"""What ``reading.read_records`` returns for one record."""

HEADERS: Final = T.ArrayType(
    T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
)


def _column(name: str, kind: T.DataType, comment: str) -> T.StructField:
    return T.StructField(name, kind, nullable=True, metadata={"comment": comment})


RECORDS: Final = T.StructType(
    [
        _column("cluster_id", T.StringType(), "Kafka's cluster id"),
        _column("topic_id", T.StringType(), "first 8 characters of the topic id, as in retry-origin"),
        _column("epoch", T.IntegerType(), "1 for the first life of the topic's name, one more for each re-creation"),
        _column("topic", T.StringType(), "name of the topic"),
        _column("partition", T.IntegerType(), "partition number"),
        _column("offset", T.LongType(), "order within topic_id and partition; has gaps, so nothing is counted by it"),
        _column("timestamp_ms", T.LongType(), "the broker's time of arrival, epoch milliseconds"),
        _column("date", T.DateType(), "its day in UTC"),
        _column("key", T.BinaryType(), "key bytes; null differs from empty"),
        _column("value", T.BinaryType(), "value bytes; null differs from empty"),
        _column("headers", HEADERS, "all headers in their order, ours included"),
        _column("key_hash", T.StringType(), "salted SHA-256 of the key, in hex; by it a key is erased"),
        _column("group", T.StringType(), "consumer group"),
        _column("main", T.StringType(), "main topic of the handler"),
        _column("station", T.StringType(), "retry, dlq or events"),
        _column("failure_id", T.StringType(), "group/topic@id/partition/offset of the first delivery"),
        _column("metadata", METADATA, "stations retry and dlq: what our headers say"),
        _column("event", EVENT, "station events: what the event says; fields of other kinds are null"),
        _column("unreadable", T.StringType(), "why metadata or event could not be read; null where it could"),
        _column("run_id", T.StringType(), "the run that wrote the row"),
    ]
)

TOPICS: Final = T.StructType(
    [
        _column("cluster_id", T.StringType(), "Kafka's cluster id"),
        _column("topic_id", T.StringType(), "first 8 characters of the topic id"),
        _column("epoch", T.IntegerType(), "1 for the first life of the name"),
        _column("topic", T.StringType(), "name of the topic"),
        _column("group", T.StringType(), "consumer group"),
        _column("main", T.StringType(), "main topic of the handler"),
        _column("station", T.StringType(), "retry, dlq or events"),
        _column("partitions", T.IntegerType(), "partition count when it was seen first"),
        _column("first_seen_ms", T.LongType(), "when the archive saw it first, epoch milliseconds"),
    ]
)

GAPS: Final = T.StructType(
    [
        _column("cluster_id", T.StringType(), "Kafka's cluster id"),
        _column("topic_id", T.StringType(), "first 8 characters of the topic id"),
        _column("epoch", T.IntegerType(), "life of the topic's name"),
        _column("topic", T.StringType(), "name of the topic"),
        _column("partition", T.IntegerType(), "partition number"),
        _column("from_offset", T.LongType(), "first offset that was not read"),
        _column("to_offset", T.LongType(), "offset behind the last one"),
        _column("reason", T.StringType(), "retention, re-created or in-doubt"),
        _column("found_ms", T.LongType(), "when it was noticed, epoch milliseconds"),
        _column("run_id", T.StringType(), "the run that noticed it"),
    ]
)

ERASURES: Final = T.StructType(
    [
        _column("key_hash", T.StringType(), "salted SHA-256 of the key, in hex"),
        _column("erased_ms", T.LongType(), "records that arrived until then are not kept, epoch milliseconds"),
        _column("ended_ms", T.LongType(), "when its last step was done, epoch milliseconds; null: that it began"),
    ]
)

_CUT: Final = T.ArrayType(
    T.StructType(
        [
            T.StructField("topic", T.StringType()),
            T.StructField("topic_id", T.StringType()),
            T.StructField("partition", T.IntegerType()),
            T.StructField("offset", T.LongType()),
        ]
    )
)

RUNS: Final = T.StructType(
    [
        _column("run_id", T.StringType(), "name of the run"),
        _column("job", T.StringType(), "archive, erase, compact, ..."),
        _column("cluster_id", T.StringType(), "Kafka's cluster id, for jobs that read it"),
        _column("group", T.StringType(), "consumer group, for jobs that are about one"),
        _column("state", T.StringType(), "started, finished, failed or interrupted: one row each"),
        _column("at_ms", T.LongType(), "when, epoch milliseconds"),
        _column("rows", T.LongType(), "rows written"),
        _column("checkpoint", T.StringType(), "folder of Spark's notes"),
        _column("cut", _CUT, "finished: the published cut, next offset of each partition"),
        _column("version", T.StringType(), "version of retryapp"),
        _column("detail", T.StringType(), "what else is to be known: the error of a failed run"),
    ]
)

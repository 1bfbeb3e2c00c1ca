"""Reads a range of a topic, as a committed reader sees it; no group is joined and nothing is committed.

First and committed end offsets are asked for once: a reading of a busy topic ends. The last offsets may be transaction
markers or aborted records, which are never delivered: the client's end-of-partition event carries the position past
them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, Unpack, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retryapp.core.control import is_mark
from retryapp.core.errors import BrokerUnreachableError, shown
from retryapp.core.record import Headers, Record
from retryapp.core.redelivery import is_copy
from retryapp.core.row_keys import is_identity
from retryapp.kafka.admin import KafkaAdmin
from retryapp.kafka.connection import UNREACHABLE, KafkaConnection, named_error
from retryapp.kafka.errors import UnreadableHeaderError

if TYPE_CHECKING:
    from confluent_kafka import Message

T = TypeVar("T")

END_OF_PARTITION: Final = "_PARTITION_EOF"
BATCH: Final = 1_000
POLL_S: Final = 0.2
SILENCE_S: Final = 30.0  # a reading without a record for so long is given up


class Bounds(TypedDict, total=False):
    """What to read of a topic."""

    partitions: Iterable[int] | None
    """Which partitions; None: all."""
    start: Mapping[int, int]
    """First offset by partition; default, and at least: the first kept."""
    stop: Mapping[int, int]
    """Offset by partition before which to stop; default, and at most: the committed end."""


def read_topic(connection: KafkaConnection, topic: str, **bounds: Unpack[Bounds]) -> Iterator[Record]:
    """Yield the committed records of a topic, in offset order within a partition; partitions interleave.

    Raises:
        TopicMissingError: no such topic or partition.
        BrokerUnreachableError: no broker answered, or none for ``SILENCE_S``.
        AccessDeniedError: we may not read it.
    """
    return _read(connection, topic, _record, bounds)


def read_offsets(
    connection: KafkaConnection, topic: str, *, marks: bool = False, **bounds: Unpack[Bounds]
) -> Iterator[tuple[int, int, int, bool]]:
    """Yield records as ``read_topic`` does, also those that it cannot decode: where each is, and what it is.

    That is partition, offset, timestamp in ms, and whether it is no record of its own: a copy of one that is due
    again, or with `marks`, on a dead-letter topic, what became of a letter.
    """
    return _read(connection, topic, partial(_place_or_copy, marks=marks), bounds)


def read_keys(connection: KafkaConnection, topic: str) -> Iterator[tuple[bytes | None, int]]:
    """Yield key and timestamp in ms of records as ``read_topic`` does, also of those that it cannot decode."""
    return _read(connection, topic, lambda message: (message.key(), message.timestamp()[1]), {})


def _read(
    connection: KafkaConnection,
    topic: str,
    convert: Callable[[Message], T],
    bounds: Bounds,
    *,
    first_only: bool = False,
) -> Iterator[T]:
    ranges = KafkaAdmin(connection).offsets(topic, bounds.get("partitions"))
    todo: dict[int, int] = {}
    places = []
    for number, kept in ranges.items():
        first = max(kept.start, bounds.get("start", {}).get(number, kept.start))
        last = min(kept.stop, bounds.get("stop", {}).get(number, kept.stop))
        if first < last:
            todo[number] = last
            places.append(TopicPartition(topic, number, first))
    if not todo:
        return
    consumer = _consumer(connection)
    try:
        consumer.assign(places)
        yield from _drain(consumer, connection, topic, todo, convert, first_only=first_only)
    finally:
        consumer.close()


def follow_topic(connection: KafkaConnection, topic: str, start: Mapping[int, int]) -> Generator[Record | None]:
    """Yield the committed records of partitions from offsets on as they come, and never end.

    None is yielded where there is no more for now, at least every ``POLL_S``.

    Raises:
        TopicMissingError, AccessDeniedError: as ``read_topic``.
    """
    consumer = _consumer(connection)
    try:
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in start.items()])
        while True:
            first = consumer.poll(POLL_S)
            for message in () if first is None else (first, *consumer.consume(BATCH, 0)):
                error = message.error()
                if error is None:
                    yield _record(message)
                elif error.name() != END_OF_PARTITION:
                    _refuse_or_note(error, connection, topic, [])
            yield None
    finally:
        consumer.close()


def read_record(connection: KafkaConnection, topic: str, partition: int, offset: int) -> Record | None:
    """Return the committed record at one offset; None when it is not (or no longer, or not yet) there."""
    found = read_topic(
        connection, topic, partitions=[partition], start={partition: offset}, stop={partition: offset + 1}
    )
    return next((record for record in found if record.offset == offset), None)


def first_times(connection: KafkaConnection, topic: str, ranges: Mapping[int, range]) -> dict[int, int]:
    """Return the timestamp in ms of the first committed record in a range of offsets, by partition that has one.

    The end of a transaction has an offset, too, and is no record.
    """
    wanted = {number: offsets for number, offsets in ranges.items() if offsets}
    start = {number: offsets.start for number, offsets in wanted.items()}
    stop = {number: offsets.stop for number, offsets in wanted.items()}
    found = _read(connection, topic, _place, {"partitions": wanted, "start": start, "stop": stop}, first_only=True)
    return {number: timestamp_ms for number, _, timestamp_ms in found} if wanted else {}


def fold_changelog(
    connection: KafkaConnection,
    topic: str,
    convert: Callable[[bytes, bytes], T],
    **bounds: Unpack[Bounds],
) -> dict[bytes, T]:
    """Return the rows of a table by identity, each put converted from key and value, from its changelog."""
    rows: dict[bytes, T] = {}
    for record in read_topic(connection, topic, **bounds):
        if record.key is None or not is_identity(record.key):  # owner mark, progress
            continue
        if record.value is None:
            rows.pop(record.key, None)
        else:
            rows[record.key] = convert(record.key, record.value)
    return rows


def _consumer(connection: KafkaConnection) -> Consumer:
    return connection.client(
        Consumer,
        group_id="retryapp-reader",  # the client asks for one; nothing joins or commits
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        fetch_wait_max_ms=100,
        queued_max_messages_kbytes=32 * 1024,
    )


def _drain(
    consumer: Consumer,
    connection: KafkaConnection,
    topic: str,
    todo: dict[int, int],
    convert: Callable[[Message], T],
    *,
    first_only: bool,
) -> Iterator[T]:
    silent_s = 0.0
    hints: list[str] = []
    while todo:
        first = consumer.poll(POLL_S)  # returns at once when something is there; consume() would wait for a full batch
        if first is None:
            silent_s += POLL_S
            if silent_s >= SILENCE_S:
                reason = "; ".join(dict.fromkeys(hints)) or f"nothing from topic {topic}"
                raise BrokerUnreachableError(connection.bootstrap, f"silent for {SILENCE_S:g} s: {reason}")
            continue
        for message in (first, *consumer.consume(BATCH, 0)):
            error = message.error()
            if error is not None and error.name() != END_OF_PARTITION:
                _refuse_or_note(error, connection, topic, hints)
                continue
            silent_s = 0.0
            number, offset, _ = _place(message)
            if number not in todo:
                continue
            if error is None and offset < todo[number]:
                yield convert(message)
            if offset >= todo[number] - (1 if error is None else 0) or (first_only and error is None):
                del todo[number]
                consumer.incremental_unassign([TopicPartition(topic, number)])


def _refuse_or_note(error: KafkaError, connection: KafkaConnection, topic: str, hints: list[str]) -> None:
    if error.name() in UNREACHABLE or error.retriable() or error.name() == "GROUP_AUTHORIZATION_FAILED":
        hints.append(error.str())
        del hints[:-3]
        return
    doing = f"read topic {topic}"
    raise named_error(error, connection, doing=doing, topic=topic, tried_s=0.0, right="Read") from KafkaException(error)


def _place(message: Message) -> tuple[int, int, int]:
    # the library's types allow None; a fetched message and an end-of-partition event have both
    partition, offset = cast("tuple[int, int]", (message.partition(), message.offset()))
    return partition, offset, message.timestamp()[1]


def _place_or_copy(message: Message, *, marks: bool) -> tuple[int, int, int, bool]:
    partition, offset, timestamp_ms = _place(message)
    try:
        headers = _headers(message)
        copy = is_copy(cast("str", message.topic()), partition, headers) or (marks and is_mark(headers))
    except UnreadableHeaderError:
        copy = False
    return partition, offset, timestamp_ms, copy


def _headers(message: Message) -> Headers:
    try:  # around both: where this runs often, Python sees the library's error only after the call
        headers = message.headers() or []
        return tuple((str(header[0]), _bytes(header[1])) for header in headers)
    except UnicodeDecodeError as error:
        topic, (partition, offset, _) = cast("str", message.topic()), _place(message)
        where = f"record {topic}[{partition}]@{offset}"
        raise UnreadableHeaderError(f"{where} has a header whose name is not UTF-8: {shown(error.object)}") from error


def _record(message: Message) -> Record:
    partition, offset, timestamp_ms = _place(message)
    return Record(
        topic=cast("str", message.topic()),
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
    )


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value

"""A Kafka record as plain data, and the identity that it keeps on every hop.

* Key, value and headers are the bytes that were read.
* An ``Origin`` is where a record was delivered first. It is set once and never overwritten.
* A failure id is ``group/topic@id/partition/offset``, where ``id`` is the start of the main topic's topic id: a topic
  that is deleted and recreated does not repeat old ids.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

from retryapp.core.errors import DamagedMetadataError
from retryapp.core.values import value_type

Headers = tuple[tuple[str, bytes | None], ...]
"""Record headers in their order, duplicates and null values kept."""

SHORT_TOPIC_ID_CHARS = 8
"""Characters of Kafka's 22-character topic id that go into an origin: 48 bits."""

_ORIGIN = re.compile(
    r"([A-Za-z0-9._-]{1,249})@([A-Za-z0-9_-]{1,22})/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})", re.ASCII
)
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:retryapp:failure-id")
_MAX_PARTITION = 2**31 - 1
_MAX_OFFSET = 2**63 - 1


def held_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return a record's bytes, headers included, as bounds of memory and of transactions count them."""
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"")
    return size


@dataclass(frozen=True, slots=True)
class Damage:
    """Why offsets could not be read."""

    last_offset: int
    """Last offset of the range, whose first is the record's: a checksum covers a whole batch."""
    problem: str


@value_type
class Record:
    """One record as read from a topic; or, with `damage`, offsets that could not be read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """The record's timestamp, epoch milliseconds, UTC; -1 where the record has none."""
    key: bytes | None
    """None is Kafka's null, which differs from empty."""
    value: bytes | None
    """None is Kafka's null (a tombstone on compacted topics), which differs from empty."""
    headers: Headers = ()
    damage: Damage | None = None
    """Set where this replaces offsets that could not be read; it has no key, value or headers then."""

    @property
    def next_offset(self) -> int:
        return (self.offset if self.damage is None else self.damage.last_offset) + 1

    @property
    def coordinates(self) -> str:
        """``topic[partition]@offset``, for messages and logs."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


@value_type
class Origin:
    """Where a record was first delivered."""

    topic: str
    topic_id: str
    """Start of the main topic's topic id (``short_topic_id``)."""
    partition: int
    """Partition number in the main topic; the same in all our topics."""
    offset: int

    @property
    def text(self) -> str:
        """``topic@id/partition/offset``, as in the ``retry-origin`` header."""
        return f"{self.topic}@{self.topic_id}/{self.partition}/{self.offset}"


def short_topic_id(topic_id: str) -> str:
    """Cut Kafka's topic id (22 characters, URL-safe base64) to the length used in origins."""
    return topic_id[:SHORT_TOPIC_ID_CHARS]


def parse_origin(text: str) -> Origin:
    """Decode an origin; raise `DamagedMetadataError` for another form or a number out of Kafka's range."""
    match = _ORIGIN.fullmatch(text)
    if match is not None:
        topic, topic_id, partition, offset = match.groups()
        if int(partition) <= _MAX_PARTITION and int(offset) <= _MAX_OFFSET:
            return Origin(topic, topic_id, int(partition), int(offset))
    raise DamagedMetadataError("retry-origin", "expected topic@id/partition/offset, as orders@kq8G0bTz/3/1042")


def failure_id(group: str, origin: Origin) -> str:
    """Return the id of one record's failure in one group: the same in every copy, on every topic."""
    return f"{group}/{origin.text}"


def idempotency_key(failure_id: str, edited: int | None = None) -> str:
    """Return a UUID (version 5, RFC 9562 section 5.5) for a record's effects in services and databases.

    It depends on the failure id alone: it is the same at every attempt, after every crash and in every replay. Where
    somebody has `edited` the record and wants its effects again, ``-e1`` or a later number follows.
    """
    return f"{uuid.uuid5(_NAMESPACE, failure_id)}{f'-e{edited}' if edited else ''}"


def parse_failure_id(text: str) -> tuple[str, Origin]:
    """Split a failure id into group and origin; raise `DamagedMetadataError` if it is none."""
    group, slash, origin = text.partition("/")
    if not slash or not group:
        raise DamagedMetadataError("failure id", "expected group/topic@id/partition/offset")
    return group, parse_origin(origin)

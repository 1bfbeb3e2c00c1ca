"""Copies of records that are due again, on the main topic (`redelivery="main"`): how they are named and recognised.

A copy is the record as it was, with one more header: the failure id and the number of the delivery that it is for. It
starts nothing. Every handler of this library passes it, whose ever it is; what is delivered is the row.
"""

from __future__ import annotations

from typing import Final

from retryapp.core.errors import DamagedMetadataError
from retryapp.core.foreign import escape_names
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers, parse_failure_id

RETRY_REDELIVERY: Final = "retry-redelivery"
"""Only on main topics, so none of `headers.OUR_HEADERS`: a user's own of this name passes as it is."""


def copied(headers: Headers, metadata: RetryMetadata) -> Headers:
    """Return the headers of the copy of a record, from the record's own, for its next delivery."""
    name = f"{metadata.failure_id}:{metadata.delivery + 1}".encode("ascii")
    return (*escape_names(headers), (RETRY_REDELIVERY, name))


def is_copy(topic: str, partition: int, headers: Headers) -> bool:
    """Tell whether a record of a main topic is a copy of an earlier one of the same partition.

    A service may pass all headers of what it reads on to another topic: there they name another one, and mean nothing.
    """
    return any(name == RETRY_REDELIVERY and _names(value, topic, partition) for name, value in headers)


def _names(value: bytes | None, topic: str, partition: int) -> bool:
    identity, _, delivery = (value or b"").decode("ascii", "replace").rpartition(":")
    try:
        _, origin = parse_failure_id(identity)
    except DamagedMetadataError:
        return False
    return (origin.topic, origin.partition) == (topic, partition) and delivery.isdigit()

"""The journey of one record, read from the group's topics: its attempts, what was done to it, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from retryapp.core.causes import cause_id
from retryapp.core.control import mark_of
from retryapp.core.errors import DamagedEventError, DamagedMetadataError
from retryapp.core.headers import RETRY_ORIGIN, decode_metadata
from retryapp.core.hops import REPLAY
from retryapp.core.lifecycle import Commanded, RecordEvent, Succeeded, decode_event
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, read_topic, with_dead_letters
from retryapp.kafka.positions import Positions

_TELL_EVERY: Final = 500
_SKEW_MS: Final = 60_000
"""How far a producer's clock may be ahead of the broker's."""


class Journey(NamedTuple):
    """What is known of a record, the oldest first."""

    steps: list[dict[str, Any]]
    looked: int
    complete: bool
    """Whether all that may be about it was read."""


def journey(
    connection: KafkaConnection,
    topology: HandlerTopology,
    origin: Origin,
    since_ms: int | None,
    go_on: Callable[[], bool],
) -> Journey:
    """Read what the topics of a handler say of one record, from an instant on; `go_on` ends it with False."""
    admin, names = Positions(connection), set(KafkaAdmin(connection).topic_names())
    topics = [*topology.retry_topics, *with_dead_letters(topology, names).dlqs, topology.events]
    places = [(topic, origin.partition) for topic in topics if topic in names]
    starts = {} if since_ms is None else admin.at_time(places, max(0, since_ms - _SKEW_MS))
    steps, looked, complete = list[dict[str, Any]](), 0, True
    for topic, number in places:
        start = starts.get((topic, number), 0)
        if start is None:  # all of it is older
            continue
        for record in read_topic(connection, topic, partitions=[number], start={number: start}):
            looked += 1
            if looked % _TELL_EVERY == 0 and not go_on():
                complete = False
                break
            events = topic == topology.events
            steps += _told(record, topology, origin) if events else _failed(record, topology, origin)
    steps.sort(key=lambda step: step["at_ms"])
    return Journey(steps, looked, complete)


def _failed(record: Record, topology: HandlerTopology, origin: Origin) -> Iterator[dict[str, Any]]:
    """Return what a copy on a retry topic, a dead letter or its mark says."""
    mark = mark_of(record.headers, record.value)
    if mark is not None:
        if mark.failure_id == failure_id(topology.group, origin):
            yield {"kind": str(mark.mark), "at_ms": record.timestamp_ms, "by": mark.by}
        return
    if (RETRY_ORIGIN, origin.text.encode()) not in record.headers:
        return
    with suppress(DamagedMetadataError):
        read = decode_metadata(record.headers)
        if read is not None and read.group == topology.group and read.tier != REPLAY:  # its letter's mark says it
            yield _attempt(read) if read.delivery else {"kind": "waits", "at_ms": record.timestamp_ms}


def _attempt(read: RetryMetadata) -> dict[str, Any]:
    return {
        "kind": "failed" if read.reason is None else "dead",
        "at_ms": read.last_failed_ms,
        "attempt": read.attempt,
        "delivery": read.delivery,
        "replays": read.replays,
        "duration_ms": max(0, read.last_failed_ms - read.started_ms),
        "worker": read.worker,
        "error_type": read.error_type,
        "message": read.error_message,
        "cause_id": cause_id(read.error_type, read.fingerprint, read.error_message),
        "due_at_ms": read.due_at_ms,
        "reason": read.reason,
        "edited": read.edited,
    }


def _told(record: Record, topology: HandlerTopology, origin: Origin) -> Iterator[dict[str, Any]]:
    if record.key != failure_id(topology.group, origin).encode():
        return
    with suppress(DamagedEventError):
        event = decode_event(record.value or b"")
        if isinstance(event, Commanded):
            outcome = f"refused, {event.refused}" if event.refused else event.text
            yield {"kind": event.verb, "at_ms": event.at_ms, "by": event.by, "text": outcome, "message": event.why}
        elif isinstance(event, RecordEvent):
            facts = event.model_dump(include={"attempt", "delivery", "replays", "error_type", "reason", "worker"})
            began_ms, at_ms = getattr(event, "started_ms", None), getattr(event, "ended_ms", record.timestamp_ms)
            duration = {} if began_ms is None else {"duration_ms": max(0, at_ms - began_ms)}
            why = {} if isinstance(event, Succeeded) else {"message": getattr(event, "error_message", None)}
            yield {"kind": event.kind, "at_ms": at_ms, **facts, **duration, **why}

"""What becomes of a record that cannot go on its way: a dead letter.

* The client library could not read it: reason `damaged`, one dead letter for the range of offsets, with no payload.
* Its own `retry-*` headers cannot be trusted: reason `damaged`. Key, value and foreign headers are kept; of the
  metadata, what can still be read (`core.salvage`).
* It does not fit into the topic that is next: reason `too-large`. What does not fit into the dead letter either is
  dropped, the value first; the coordinates of the first delivery stay.
"""

from __future__ import annotations

from dataclasses import replace

from retryapp.core.errors import RecordError, UnreadableRecordsError
from retryapp.core.hops import to_dead_letter, too_large_to_wait
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.salvage import salvage
from retryapp.engine.handler import Handler
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, TopicPartition


def bury_damaged(
    handler: Handler, record: Record, error: RecordError, *, now_ms: int, topic_id: str, max_bytes: int
) -> Turn:
    """Return the turn that sends a damaged record to the dead-letter topic.

    Args:
        handler: whose record it is.
        record: as read from a retry or redelivery topic, or a row of the pending table.
        error: what is damaged.
        now_ms: epoch milliseconds.
        topic_id: short id of the main topic.
        max_bytes: largest record that the dead-letter topic takes.
    """
    metadata = salvage(
        record,
        error,
        group=handler.group,
        handler=handler.name,
        topic_id=topic_id,
        policy_digest=handler.policy.digest,
        now_ms=now_ms,
    )
    turn = _bury(handler, record, metadata, max_bytes=max_bytes)
    (dead,) = turn.observations
    turn.observations = (replace(dead, event=Event.DAMAGED, reason=None), dead)
    return turn


def unreadable(record: Record) -> UnreadableRecordsError | None:
    """Return what to bury a record for that stands for offsets which could not be read; None for a real record."""
    if record.damage is None:
        return None
    return UnreadableRecordsError(
        record.topic, record.partition, record.offset, record.damage.last_offset, record.damage.problem
    )


def bury_too_large(handler: Handler, record: Record, metadata: RetryMetadata, *, max_bytes: int) -> Turn:
    """Return the turn that sends a record that was to wait, and does not fit, to the dead-letter topic.

    Args:
        handler: whose record it is.
        record: as read from a retry topic, or a row of the pending table as it would be on the redelivery topic.
        metadata: what its headers say.
        max_bytes: largest record that our topics take.
    """
    return _bury(handler, record, too_large_to_wait(metadata), max_bytes=max_bytes)


def _bury(handler: Handler, record: Record, metadata: RetryMetadata, *, max_bytes: int) -> Turn:
    outgoing, metadata = to_dead_letter(record, topology=handler.topology, metadata=metadata, max_bytes=max_bytes)
    return Turn(
        source=TopicPartition(record.topic, record.partition),
        next_offset=record.next_offset,
        publishes=(outgoing,),
        observations=(
            Observation(
                event=Event.DEAD,
                handler=handler.main,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                failure_id=metadata.failure_id,
                attempt=metadata.attempt,
                reason=metadata.reason,
                error_type=metadata.error_type,
                message=metadata.error_message,
            ),
        ),
    )

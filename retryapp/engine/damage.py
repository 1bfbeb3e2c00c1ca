"""What becomes of a record that cannot go on its way: a dead letter.

* The client library could not read it: reason `damaged`, one dead letter for the range of offsets, with no payload.
* Its own `retry-*` headers cannot be trusted: reason `damaged`. Key, value and foreign headers are kept; of the
  metadata, what can still be read (`core.salvage`).
* It does not fit into the topic that is next: reason `too-large`. What does not fit into the dead letter either is
  dropped, the value first; the coordinates of the first delivery stay.
* Its failure cannot be told, for a reason that nobody thought of: reason `damaged`, with the least that can be said.
"""

from __future__ import annotations

from dataclasses import replace

from retryapp.core.errors import RecordError, UnreadableRecordsError
from retryapp.core.hops import arriving, to_dead_letter, too_large_to_wait
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.salvage import last_words, salvage
from retryapp.engine.handler import Handler
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, TopicPartition


def bury_damaged(
    handler: Handler, record: Record, error: RecordError, *, now_ms: int, topic_id: str, max_bytes: int
) -> Turn:
    """Return the turn that sends a damaged record to the dead-letter topic."""
    metadata = salvage(
        record,
        error,
        group=handler.group,
        handler=handler.name,
        topic_id=topic_id,
        policy_digest=handler.policy_digest,
        now_ms=now_ms,
    )
    return _told(_bury(handler, record, metadata, max_bytes=max_bytes))


def last_resort(
    handler: Handler,
    record: Record,
    error: BaseException,
    fault: BaseException,
    *,
    now_ms: int,
    topic_id: str,
    max_bytes: int,
) -> Turn:
    """Return the turn of a record whose failure could not be told: without one it would hold up its partition for ever.

    It always can be built; if need be, without anything but the record's coordinates.
    """
    new = record.topic == handler.main
    metadata = last_words(
        replace(record, headers=()) if new else record,
        error,
        fault,
        group=handler.group,
        handler=handler.name,
        topic_id=topic_id,
        policy_digest=handler.policy_digest,
        now_ms=now_ms,
    )
    try:
        turn = _bury(handler, arriving(record) if new else record, metadata, max_bytes=max_bytes)
    except Exception:  # noqa: BLE001 - whatever it is, it must not be the fate of a partition
        bare = replace(record, key=None, value=None, headers=())
        turn = _bury(handler, bare, metadata, max_bytes=max_bytes)
    return _told(turn)


def unreadable(record: Record) -> UnreadableRecordsError | None:
    """Return what to bury a record for that stands for offsets which could not be read; None for a real record."""
    if record.damage is None:
        return None
    return UnreadableRecordsError(
        record.topic, record.partition, record.offset, record.damage.last_offset, record.damage.problem
    )


def bury_too_large(handler: Handler, record: Record, metadata: RetryMetadata, *, max_bytes: int) -> Turn:
    """Return the turn that sends a record that was to wait, and does not fit, to the dead-letter topic."""
    return _bury(handler, record, too_large_to_wait(metadata), max_bytes=max_bytes)


def _told(turn: Turn) -> Turn:
    """Let observers hear of the damage too."""
    (dead,) = turn.observations
    turn.observations = (replace(dead, event=Event.DAMAGED, reason=None), dead)
    return turn


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

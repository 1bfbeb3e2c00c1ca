"""What becomes of a record that cannot go on its way: a dead letter.

* The client library could not read it: reason `damaged`, one dead letter for the range of offsets, with no payload.
* Its own `retry-*` headers cannot be trusted: reason `damaged`. Key, value and foreign headers are kept; of the
  metadata, what can still be read (`core.salvage`).
* It does not fit into the topic that is next: reason `too-large`. What does not fit into the dead letter either is
  dropped, the value first; the coordinates of the first delivery stay.
* Its failure cannot be written down, for a reason that nobody foresaw: reason `damaged`, with the least that is known.
"""

from __future__ import annotations

from dataclasses import replace

from retryapp.core.errors import RecordError, UnreadableRecordsError
from retryapp.core.hops import arriving, to_dead_letter, too_large_to_wait
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.salvage import last_words, salvage
from retryapp.engine.run import DeliveryContext
from retryapp.engine.turn import Turn, observed, settling
from retryapp.ports import Event


def bury_damaged(context: DeliveryContext, record: Record, error: RecordError, now_ms: int) -> Turn:
    """Return the turn that sends a damaged record, as read from a topic of ours or a row, to the dead letters."""
    handler = context.handler
    metadata = salvage(
        record,
        error,
        group=handler.group,
        handler=handler.name,
        topic_id=context.topic_id,
        policy_digest=handler.policy_digest,
        now_ms=now_ms,
    )
    return _with_damage(_bury(context, record, metadata))


def last_resort(
    context: DeliveryContext, record: Record, error: BaseException, fault: BaseException, now_ms: int
) -> Turn:
    """Return the turn of a record whose failure (`error`) could not be written down because of `fault`.

    Without one it would block its partition. It can always be built; if need be, of nothing but the coordinates.
    """
    handler = context.handler
    new = record.topic == handler.main
    metadata = last_words(
        replace(record, headers=()) if new else record,
        error,
        fault,
        group=handler.group,
        handler=handler.name,
        topic_id=context.topic_id,
        policy_digest=handler.policy_digest,
        now_ms=now_ms,
    )
    try:
        turn = _bury(context, arriving(record) if new else record, metadata)
    except Exception:  # noqa: BLE001 - whatever it is, it must not block a partition
        turn = _bury(context, replace(record, key=None, value=None, headers=()), metadata)
    return _with_damage(turn)


def unreadable(record: Record) -> UnreadableRecordsError | None:
    """Return what to bury a record for that stands for offsets which could not be read; None for a real record."""
    if record.damage is None:
        return None
    return UnreadableRecordsError(
        record.topic, record.partition, record.offset, record.damage.last_offset, record.damage.problem
    )


def bury_too_large(context: DeliveryContext, record: Record, metadata: RetryMetadata) -> Turn:
    """Return the turn that sends a record that was to wait, and does not fit, to the dead letters."""
    return _bury(context, record, too_large_to_wait(metadata))


def _with_damage(turn: Turn) -> Turn:
    """Let observers see the damage too."""
    (dead,) = turn.observations
    turn.observations = (replace(dead, event=Event.DAMAGED, reason=None), dead)
    return turn


def _bury(context: DeliveryContext, record: Record, metadata: RetryMetadata) -> Turn:
    topology = context.handler.topology
    letter, metadata = to_dead_letter(record, topology=topology, metadata=metadata, max_bytes=context.max_bytes)
    dead = observed(
        Event.DEAD,
        topology.main,
        record,
        failure_id=metadata.failure_id,
        attempt=metadata.attempt,
        reason=metadata.reason,
        error_type=metadata.error_type,
        message=metadata.error_message,
    )
    return settling(record, publishes=(letter,), observations=(dead,))

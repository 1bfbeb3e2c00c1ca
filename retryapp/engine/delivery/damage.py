"""Dead-letter records that cannot be processed any further.

* Unreadable by the client library: `damaged`, one dead letter without payload for the range of offsets.
* Damaged `retry-*` headers: `damaged`, with key, value, foreign headers and the metadata that `core.salvage` can read.
* Too large for the next topic: `too-large`. If the dead letter does not fit either, the value is dropped first; the
  coordinates of the first delivery stay.
* A failure that cannot be written down: `damaged`, with the little that is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retryapp.core.errors import RecordError, UnreadableRecordsError
from retryapp.core.hops import arriving, to_dead_letter, too_large_to_wait
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.salvage import last_words, salvage
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.turn import Turn, observed, settling
from retryapp.ports import Event


def bury_damaged(context: DeliveryContext, record: Record, error: RecordError, now_ms: int) -> Turn:
    """Return the turn that dead-letters a damaged record of one of our topics or rows."""
    return _with_damage(_bury(context, record, salvage(record, error, **_facts(context, now_ms))))


def last_resort(
    context: DeliveryContext, record: Record, error: BaseException, fault: BaseException, now_ms: int
) -> Turn:
    """Dead-letter a record whose failure (`error`) cannot be written down because of `fault`: it must not block."""
    new = record.topic == context.handler.main
    metadata = last_words(replace(record, headers=()) if new else record, error, fault, **_facts(context, now_ms))
    try:
        turn = _bury(context, arriving(record) if new else record, metadata)
    except Exception:  # noqa: BLE001 - whatever it is, it must not block a partition
        turn = _bury(context, replace(record, key=None, value=None, headers=()), metadata)
    return _with_damage(turn)


def unreadable(record: Record) -> UnreadableRecordsError | None:
    """Return the error of a record that stands for a range of unreadable offsets; None for a real record."""
    if record.damage is None:
        return None
    return UnreadableRecordsError(
        record.topic, record.partition, record.offset, record.damage.last_offset, record.damage.problem
    )


def bury_too_large(context: DeliveryContext, record: Record, metadata: RetryMetadata) -> Turn:
    """Return the turn that dead-letters a record too large for a waiting row."""
    return _bury(context, record, too_large_to_wait(metadata))


def _facts(context: DeliveryContext, now_ms: int) -> dict[str, Any]:
    handler = context.handler
    return {
        "group": handler.group,
        "handler": handler.name,
        "topic_id": context.topic_id,
        "policy_digest": handler.policy_digest,
        "now_ms": now_ms,
    }


def _with_damage(turn: Turn) -> Turn:
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

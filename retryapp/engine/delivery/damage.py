"""Dead-letter records that cannot be processed any further.

* Unreadable by the client library: `damaged`, one dead letter without payload for the range of offsets.
* A row that is damaged, or has damaged `retry-*` headers: `damaged`, with key, value, foreign headers and the metadata
  that `core.salvage` can read.
* A failure that cannot be written down: `damaged`, with the little that is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retryapp.core.errors import RecordError, UnreadableRecordsError
from retryapp.core.hops import arriving, to_dead_letter
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.salvage import last_words, salvage
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.lane.turn import Turn, observed
from retryapp.ports import Event


def bury_damaged(run: Run, error: RecordError, now_ms: int) -> Turn:
    """Return the turn that dead-letters a record or row that cannot be read."""
    return _with_damage(_bury(run, run.record, salvage(_first_delivered(run), error, **_facts(run.context, now_ms))))


def last_resort(run: Run, error: BaseException, fault: BaseException, now_ms: int) -> Turn:
    """Dead-letter a record whose failure (`error`) cannot be written down because of `fault`: it must not block."""
    context, record = run.context, run.record
    new = run.claim is None
    named = replace(record, headers=()) if new else _first_delivered(run)
    metadata = last_words(named, error, fault, **_facts(context, now_ms))
    try:
        turn = _bury(run, arriving(record) if new else record, metadata)
    except Exception:  # noqa: BLE001 - whatever it is, it must not block a partition
        turn = _bury(run, replace(record, key=None, value=None, headers=()), metadata)
    return _with_damage(turn)


def _first_delivered(run: Run) -> Record:
    """Return the record with the coordinates of its first delivery: a row's identity has them if nothing else does."""
    return run.record if run.claim is None else replace(run.record, topic=run.context.handler.main)


def unreadable(record: Record) -> UnreadableRecordsError | None:
    """Return the error of a record that stands for a range of unreadable offsets; None for a real record."""
    if record.damage is None:
        return None
    return UnreadableRecordsError(
        record.topic, record.partition, record.offset, record.damage.last_offset, record.damage.problem
    )


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


def _bury(run: Run, record: Record, metadata: RetryMetadata) -> Turn:
    context = run.context
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
    return run.settle(publishes=(letter,), observations=(dead,))

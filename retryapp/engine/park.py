"""Park: a record of the retry topic becomes a row of the pending table.

A record whose metadata cannot be read is not parked: when it is due is not known, and "no delay" would be a lie. It
goes to the dead-letter topic with reason `damaged`, bytes untouched. Neither is one whose row, or whose way back, would
be larger than a record may be: it is dead with reason `too-large`.

Only what waiting needs is read of the metadata (`decode_waiting`); damage of the rest is found before the record is
delivered. What a newer retryapp wrote is no damage: the partition stops until this worker is upgraded.
"""

from __future__ import annotations

from retryapp.core.errors import DamagedMetadataError, NewerFormatError, NewerRecordError, UnreadableRecordsError
from retryapp.core.headers import RETRY_DUE_MS, RetryMetadata, decode_metadata, decode_waiting
from retryapp.core.hops import to_redelivery, waiting_size
from retryapp.core.record import Record
from retryapp.core.rows import encode_row, row_key, row_of
from retryapp.engine.damage import bury_damaged, bury_too_large, unreadable
from retryapp.engine.run import DeliveryContext
from retryapp.engine.turn import Turn, observed, settling
from retryapp.ports import Event, Row


def park(context: DeliveryContext, record: Record, now_ms: int) -> Turn:
    """Return the turn that parks a record of a retry topic, or buries it when it is damaged or its row too large."""
    topology = context.handler.topology
    try:
        if (damage := unreadable(record)) is not None:
            raise damage
        waiting = decode_waiting(record.headers)
        if waiting is None:
            raise _no_due_time()
        row = row_of(record)
        if waiting_size(to_redelivery(row, topology=topology, partition=record.partition)) > context.max_bytes:
            return bury_too_large(context, record, waiting_metadata(record))
    except NewerFormatError as exc:
        raise NewerRecordError(record.coordinates, exc.finding) from exc
    except (DamagedMetadataError, UnreadableRecordsError) as exc:
        return bury_damaged(context, record, exc, now_ms)
    key = row_key(waiting.due_at_ms, record.partition, waiting.origin.offset)
    parked = observed(
        Event.PARKED,
        topology.main,
        record,
        failure_id=waiting.failure_id,
        attempt=waiting.attempt,
        tier=waiting.tier,
        due_at_ms=waiting.due_at_ms,
    )
    return settling(record, puts=(Row(key, encode_row(row), waiting.tier),), observations=(parked,))


def waiting_metadata(record: Record) -> RetryMetadata:
    """Return the metadata of a record that waits or waited.

    Raises:
        NewerRecordError: a newer retryapp wrote it.
        DamagedMetadataError: there is none, it cannot be read, or it has no due time.
    """
    try:
        metadata = decode_metadata(record.headers)
    except NewerFormatError as exc:
        raise NewerRecordError(record.coordinates, exc.finding) from exc
    if metadata is None or metadata.due_at_ms is None:
        raise _no_due_time()
    return metadata


def _no_due_time() -> DamagedMetadataError:
    return DamagedMetadataError(RETRY_DUE_MS, None, "a record on a retry or redelivery topic has a due time")

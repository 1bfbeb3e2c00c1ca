"""Park records: a record of the retry topic becomes a row of the pending table.

A record whose metadata cannot be read has no known due time and is dead-lettered as `damaged`, bytes untouched; one
whose row or redelivery would be too large, as `too-large`. Only the metadata that waiting needs is read
(`decode_waiting`); other damage is found before delivery. A newer format is no damage: the partition stops until this
worker is upgraded.
"""

from __future__ import annotations

from retryapp.core.errors import DamagedMetadataError, NewerFormatError, NewerRecordError, UnreadableRecordsError
from retryapp.core.headers import RETRY_DUE_MS, RetryMetadata, decode_metadata, decode_waiting
from retryapp.core.hops import to_redelivery, waiting_size
from retryapp.core.record import Record
from retryapp.core.rows import encode_row, row_key, row_of
from retryapp.engine.delivery.damage import bury_damaged, bury_too_large, unreadable
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.turn import Turn, observed, settling
from retryapp.ports import Event, Row


def park(context: DeliveryContext, record: Record, now_ms: int) -> Turn:
    """Return the turn that parks a record of a retry topic, or dead-letters a damaged or too large one."""
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
        DamagedMetadataError: it is missing, unreadable or without a due time.
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

"""What waits in place of a record (`payload="reference"`), and what the main topic must have when it is due.

Value and foreign headers stay on the main topic; the row has size, time and checksum of what the handler saw. Only a
record that was just read from there waits so: what has become a copy stays one.
"""

from __future__ import annotations

from dataclasses import replace

from retryapp.core.errors import RecordGoneError
from retryapp.core.hops import arriving
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.record import Origin, Record
from retryapp.core.reference import is_same, refer, travelling
from retryapp.core.row_keys import identity_of, origin_offset
from retryapp.core.rows import Reference
from retryapp.engine.delivery.damage import unreadable
from retryapp.engine.delivery.run import DeliveryContext, Run


def reference_of(run: Run, due_at_ms: int) -> Reference | None:
    """Return what waits in place of the record of a run that has failed; None: a copy, as it may wait too long."""
    context, shown = run.context, run.shown
    if not context.handler.by_reference or due_at_ms > (until_ms := safe_until_ms(context, shown.timestamp_ms)):
        return None
    if run.claim is None:
        return refer(shown, until_ms)
    told = run.claim.reference
    return None if told is None else replace(told, safe_until_ms=until_ms)


def safe_until_ms(context: DeliveryContext, timestamp_ms: int) -> int:
    """Return how long a record with this timestamp may wait by reference: until half of the topic's retention is over.

    What a row says of it is as old as its last failure: the topic may keep records for less time now.
    """
    if timestamp_ms < 0:  # no retention counts from there
        return -1
    kept_ms = context.kept_ms
    # half of it is for what nobody plans: workers that are down, an outage, a pause
    return MAX_EPOCH_MS if kept_ms is None else min(timestamp_ms + kept_ms // 2, MAX_EPOCH_MS)


def whole(context: DeliveryContext, waiting: Record, identity: bytes, told: Reference, found: Record | None) -> Record:
    """Return a record that waits with its payload, as a copy of it would be: `found` is what the main topic has.

    Raises:
        RecordGoneError: that is another record, or none.
        UnreadableRecordsError: its batch is damaged.
    """
    main, offset = context.handler.main, origin_offset(identity)
    here = Origin(main, context.topic_id, waiting.partition, offset)
    name = f"{main}[{waiting.partition}]@{offset}"
    if identity_of(here) != identity:
        raise RecordGoneError(name, "the main topic is another one now, of the same name")
    if found is None:
        raise RecordGoneError(name, "the main topic does not have it any more")
    if (damage := unreadable(found)) is not None:
        raise damage
    shown = arriving(found)
    if not is_same(told, shown):
        raise RecordGoneError(name, "the main topic has another record there (time, size or checksum differ)")
    return replace(waiting, value=shown.value or b"", headers=travelling(waiting.headers, shown))

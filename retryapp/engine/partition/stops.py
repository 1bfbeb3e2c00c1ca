"""Rows that keep a sequence: of a record behind its head, and of a dead one that stops it (``on_dead="hold"``).

A record that waits behind the head is settled with a held row, so that the offset goes on.

A stop lasts until somebody says what becomes of the dead record. The turn of its dead letter has a row under the
record's identity, without its payload. That row is the head of its sequence, and never due; so nothing behind it
begins, in no session, and nothing else has to remember the stop. A replay of the letter puts the record's row in its
place; a release, or a discard of the letter, removes it. A cancelled record stops nothing: somebody has decided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError, DamagedRowError, RecordError
from retryapp.core.headers import decode_metadata
from retryapp.core.hops import to_held_row, to_stopped_row
from retryapp.core.lifecycle import Held
from retryapp.core.metadata import HELD, STOPPED_TIER, RetryMetadata
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.row_keys import BEFORE_STOPPED, HELD_ROWS, identity_of
from retryapp.core.rows import PendingRow, decode_row, encode_row, is_stopped
from retryapp.engine.delivery.run import DeliveryContext, Run
from retryapp.engine.lane.turn import Turn, observed, settling, to_event
from retryapp.ports import Event, PendingTable, Row

logger = logging.getLogger("retryapp.events")

BESIDE_ROW_BYTES: Final = 200
"""Of a row in a transaction, beside its bytes."""
_PAGE: Final = 100


def held(context: DeliveryContext, record: Record) -> Turn | None:
    """Return the turn that settles a first delivery with a held row; None: the row does not fit into a transaction."""
    handler, now_ms = context.handler, context.clock.wall_ms()
    origin = Origin(record.topic, context.topic_id, record.partition, record.offset)
    row = to_held_row(
        record,
        topology=handler.topology,
        handler=handler.name,
        topic_id=origin.topic_id,
        policy_digest=handler.policy_digest,
        now_ms=now_ms,
    )
    value = encode_row(row)
    if len(value) + BESIDE_ROW_BYTES > context.max_bytes:
        return None
    name = failure_id(handler.group, origin)
    event = Held(group=handler.group, handler=handler.name, failure_id=name, origin=origin.text, at_ms=now_ms)
    return settling(
        record,
        rows=(Row(identity_of(origin), value, HELD),),
        publishes=(to_event(event, topology=handler.topology, partition=record.partition),),
        observations=(observed(Event.HELD, handler.main, record, failure_id=name),),
        held=True,
    )


def stop(run: Run, turn: Turn) -> None:
    """Have the turn of a dead record stop its sequence."""
    context = run.context
    topology = context.handler.topology
    if not any(seen.event is Event.DEAD and seen.reason != DeadReason.CANCELLED for seen in turn.observations):
        return
    letter = next(sent for sent in turn.publishes if sent.topic in topology.dlqs)
    if (metadata := decode_metadata(letter.headers)) is None:
        raise DamagedMetadataError("retry-version", "a dead letter that was just made has none")
    value = encode_row(to_stopped_row(run.record.key, metadata))
    facts: Any = {"failure_id": metadata.failure_id, "attempt": metadata.attempt, "reason": metadata.reason}
    if len(value) + BESIDE_ROW_BYTES > context.max_bytes:  # its key alone fills a record: else its lane would end
        logger.error("retryapp.sequence_not_stopped", extra={"handler": context.handler.main, **facts})
        return
    turn.observations += (observed(Event.STOPPED, context.handler.main, run.shown, **facts),)
    turn.rows = (Row(run.place, value, STOPPED_TIER),)


def _rows(table: PendingTable) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows in the place of those that stop sequences, as they are."""
    after = BEFORE_STOPPED
    while rows := [row for row in table.page(after, _PAGE) if in_place_of_stop(row[0])]:
        yield from rows
        after = rows[-1][0]


def in_place_of_stop(key: bytes) -> bool:
    """Tell whether a row is in the place of those that stop sequences."""
    return BEFORE_STOPPED < key < HELD_ROWS


def lost_stops(table: PendingTable, found: Iterable[bytes]) -> Iterator[bytes]:
    """Yield those of damaged rows, by identity, that stop sequences still: which sequences is not known."""
    for identity in found:
        key = table.find(identity)
        if key is None or not in_place_of_stop(key):
            continue
        try:
            decode_row(table.get(key) or b"")
        except DamagedRowError:
            yield identity


def stopped_rows(table: PendingTable) -> Iterator[tuple[bytes, bytes, PendingRow, RetryMetadata]]:
    """Yield the rows that stop sequences, with their keys."""
    if STOPPED_TIER not in table.counts():
        return
    for key, value in _rows(table):
        with suppress(RecordError):  # a replay or discard of its letter takes it away, too
            if is_stopped(value) and (metadata := decode_metadata((row := decode_row(value)).headers)) is not None:
                yield key, value, row, metadata

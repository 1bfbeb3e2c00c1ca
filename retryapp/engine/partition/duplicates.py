"""Skip records of the main topic whose event was seen before. Redeliveries and replays are not checked.

1. The first record of an event id is in the table, or still in flight; another record with that id is a duplicate. The
   record that the table names is none: it is read again after a crash.
2. A duplicate is settled at once, by a turn with a `skipped` event. While the first record is in flight that turn waits
   for the offset: if the first one's outcome is lost, both are read again. Later it goes as any other (`beyond`).
3. The turn that settles a first delivery, whatever its outcome, also publishes the row to the table's changelog: one
   transaction with the offset, or with the note that the record is settled beyond it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

from retryapp.core.deduplicate import Deduplicate, EventIdError, Seen, encode_seen
from retryapp.core.hops import Outgoing
from retryapp.core.lifecycle import Skipped
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.traces import place_of
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.turn import Turn, observed, settling, to_event
from retryapp.ports import Event, SeenTable, TopicPartition

logger = logging.getLogger("retryapp.events")


class Duplicates:
    """The events of one session; bounded by the records in flight and the lane's backlog."""

    def __init__(
        self, rule: Deduplicate, context: DeliveryContext, table: SeenTable, changelog: TopicPartition
    ) -> None:
        self._rule = rule
        self._context = context
        self._table = table
        self._changelog = changelog
        self._open: dict[int, bytes] = {}
        """Event of each first record that is not settled, by offset, in order."""
        self._under_way: dict[bytes, int] = {}
        """Events whose row is not in the table yet, and the offset of the first record."""

    def noted(self, turns: list[Turn], now_ms: int) -> list[Turn]:
        """Have events known as seen with the turns of their first records."""
        for turn in turns:
            self.note(turn, now_ms)
        return turns

    def skip(self, record: Record, now_ms: int) -> Turn | None:
        """Return the turn that skips a duplicate; remember any other record and return None."""
        identity = self._identity(record)
        if identity is None:
            return None
        first_offset = self._under_way.get(identity)
        in_flight = first_offset is not None
        if first_offset is None:
            found = self._table.find(identity)
            if found is not None and found.expires_ms > now_ms:
                first_offset = found.origin_offset
        if first_offset is not None and first_offset != record.offset:
            return _skipped(self._context, record, first_offset, now_ms, provisional=in_flight)
        self._under_way[identity] = record.offset
        self._open[record.offset] = identity
        return None

    def _identity(self, record: Record) -> bytes | None:
        try:
            return self._rule.identity(record)
        except BaseException as exc:  # noqa: BLE001 - user code: even SystemExit has a record handled twice, not never
            of_result = isinstance(exc, EventIdError)  # an error of the user's own may quote the record
            problem = str(exc) if of_result else "the function that returns event ids failed"
            kind, without_id = type(exc).__qualname__, self._context.handler.without_id
            without_id[kind] += 1
            if without_id[kind].bit_count() > 1:
                return None  # most likely each record fails so: 1, 2, 4, 8 and so on are logged
            facts: dict[str, Any] = {
                "handler": self._context.handler.main,
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "error_type": kind,
                "count": without_id[kind],
                "error_message": f"{problem}: this record is not deduplicated",
            }
            if not of_result:
                facts["place"] = place_of(exc)
            logger.warning("retryapp.no_event_id", extra=facts)
            return None

    def note(self, turn: Turn, now_ms: int) -> None:
        """Add the rows of the records that a turn settles to it: up to its offset, unless it settles some beyond."""
        rows: list[Outgoing] = []
        identities: list[bytes] = []
        for offset in self._first_up_to(turn.next_offset) if turn.beyond is None else turn.beyond:
            identity = self._open.pop(offset, None)
            if identity is None:
                continue
            value = encode_seen(Seen(identity, offset, now_ms + self._rule.window_ms))
            rows.append(Outgoing(*self._changelog, identity, value, ()))
            identities.append(identity)
        if rows:
            turn.patient = not turn.urgent
            turn.publishes = (*turn.publishes, *rows)
            turn.on_settled = self._settled(identities, turn.on_settled)

    def _first_up_to(self, next_offset: int) -> Iterable[int]:
        return list(takewhile(lambda offset: offset < next_offset, self._open))

    def _settled(
        self, identities: list[bytes], further: Callable[[bool, tuple[int, ...]], None] | None
    ) -> Callable[[bool, tuple[int, ...]], None]:
        def settled(committed: bool, offsets: tuple[int, ...]) -> None:
            if committed:  # the table has the rows; else the session is over
                for identity in identities:
                    self._under_way.pop(identity, None)
            if further is not None:
                further(committed, offsets)

        return settled


def begin_duplicates(context: DeliveryContext, seen: SeenTable | None, partition: int) -> Duplicates | None:
    """Return the events of a new session, if its handler deduplicates."""
    handler = context.handler
    if handler.deduplicate is None:
        return None
    if seen is None:
        raise RuntimeError(f"{handler.main}[{partition}] was opened without its table of seen events")
    return Duplicates(handler.deduplicate, context, seen, TopicPartition(handler.topology.seen_changelog, partition))


def _skipped(context: DeliveryContext, record: Record, first_offset: int, now_ms: int, *, provisional: bool) -> Turn:
    handler = context.handler
    origin = Origin(handler.main, context.topic_id, record.partition, record.offset)
    identity = failure_id(handler.group, origin)
    event = Skipped(
        group=handler.group,
        handler=handler.name,
        failure_id=identity,
        origin=origin.text,
        first_offset=first_offset,
        at_ms=now_ms,
    )
    return settling(
        record,
        publishes=(to_event(event, topology=handler.topology, partition=record.partition),),
        skipped=True,
        provisional=provisional,
        observations=(observed(Event.SKIPPED, handler.main, record, failure_id=identity, reason=event.why),),
    )

"""Fire: due rows leave the pending table for the redelivery topic, in due order, never early.

A row is claimed when its turn is queued, so no row is in two turns; the claim ends when the turn is settled. Firing
stays a bounded number of records ahead of the handler: a flood waits in the table, where it can still be cancelled or
rescheduled, not in a topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from retryapp.core.errors import (
    DamagedMetadataError,
    DamagedRowError,
    NewerFormatError,
    NewerRecordError,
    NewerRowError,
)
from retryapp.core.headers import Waiting, decode_waiting
from retryapp.core.hops import Outgoing, to_redelivery, waiting_size
from retryapp.core.record import Record
from retryapp.core.rows import PendingRow, decode_row, parse_row_key
from retryapp.engine.damage import bury_damaged, bury_too_large
from retryapp.engine.handler import Handler
from retryapp.engine.park import waiting_metadata
from retryapp.engine.turn import Turn
from retryapp.ports import Event, Observation, Removal


class Ahead:
    """How many fired records the handler has not finished yet."""

    def __init__(self) -> None:
        self._queued = 0
        self._fired: deque[int] = deque()

    def __len__(self) -> int:
        """Return the number of records in queued turns and on the redelivery topic."""
        return self._queued + len(self._fired)

    def queued(self, count: int) -> None:
        """Count records of a turn that was queued."""
        self._queued += count

    def fired(self, count: int, offsets: Sequence[int]) -> None:
        """Exchange queued records for their offsets on the redelivery topic (none when the turn was dropped)."""
        self._queued -= count
        self._fired.extend(offsets)

    def finished(self, next_offset: int) -> None:
        """Forget the records before this offset: the handler is done with them."""
        while self._fired and self._fired[0] < next_offset:
            self._fired.popleft()


def fire(
    handler: Handler, rows: Sequence[tuple[bytes, bytes]], *, partition: int, now_ms: int, topic_id: str, max_bytes: int
) -> Turn:
    """Return the turn that fires rows.

    Raises:
        ValueError: a row is not due yet: firing early is a broken promise, whatever caused it.
        NewerRecordError: a newer retryapp wrote a row. It stays where it is, and so does everything behind it.
    """
    changelog = handler.topology.pending_changelog
    publishes: list[Outgoing] = []
    removes: list[Removal] = []
    observations: list[Observation] = []
    for key, value in rows:
        place = parse_row_key(key)
        if place.due_at_ms > now_ms:
            raise ValueError(f"row due at {place.due_at_ms} ms would fire at {now_ms} ms")
        tier = "?"
        row = PendingRow(key, value, (), -1)  # what is buried where the bytes are no row
        try:
            row = decode_row(value)
            waiting = decode_waiting(row.headers)
            out = to_redelivery(row, topology=handler.topology, partition=partition)
            tier = waiting.tier if waiting else "?"
            if waiting_size(out) > max_bytes:
                found = Record(changelog, partition, place.origin_offset, -1, row.key, row.value, row.headers)
                one = bury_too_large(handler, found, waiting_metadata(found), max_bytes=max_bytes)
            else:
                one = _fired(handler, out, waiting, due_at_ms=place.due_at_ms, now_ms=now_ms)
        except (NewerFormatError, NewerRowError) as exc:
            where = f"the row of {handler.main}[{partition}]@{place.origin_offset} in the pending table"
            raise NewerRecordError(where, exc.finding) from exc
        except (DamagedRowError, DamagedMetadataError) as exc:
            found = Record(changelog, partition, place.origin_offset, -1, row.key, row.value, row.headers)
            one = bury_damaged(handler, found, exc, now_ms=now_ms, topic_id=topic_id, max_bytes=max_bytes)
        publishes.extend(one.publishes)
        observations.extend(one.observations)
        removes.append(Removal(key, tier))
    return Turn(publishes=tuple(publishes), removes=tuple(removes), observations=tuple(observations))


def _fired(handler: Handler, out: Outgoing, waiting: Waiting | None, *, due_at_ms: int, now_ms: int) -> Turn:
    observation = Observation(
        event=Event.FIRED,
        handler=handler.main,
        topic=out.topic,
        partition=out.partition,
        failure_id=waiting.failure_id if waiting else None,
        attempt=waiting.attempt if waiting else None,
        tier=waiting.tier if waiting else None,
        due_at_ms=due_at_ms,
        lateness_ms=now_ms - due_at_ms,
    )
    return Turn(publishes=(out,), observations=(observation,))

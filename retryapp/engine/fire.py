"""Fire: due rows leave the pending table for the redelivery topic, in due order, never early.

A row is claimed when its turn is queued, so no row is in two turns; the claim ends when the turn is settled. Firing
stays a bounded number of records ahead of the handler: a flood waits in the table, where it can still be cancelled or
rescheduled, not in a topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.headers import RETRY_VERSION, decode_metadata
from retryapp.core.hops import Outgoing, to_redelivery
from retryapp.core.record import Record
from retryapp.core.rows import decode_row, parse_row_key
from retryapp.engine.damage import bury_damaged
from retryapp.engine.handler import Handler
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

    Args:
        handler: whose rows they are.
        rows: `(key, value)` of the pending table, all due.
        partition: partition number of the handler's topics.
        now_ms: epoch milliseconds.
        topic_id: short id of the main topic.
        max_bytes: largest record that the dead-letter topic takes.

    Raises:
        ValueError: a row is not due yet: firing early is a broken promise, whatever caused it.
    """
    publishes: list[Outgoing] = []
    removes: list[Removal] = []
    observations: list[Observation] = []
    for key, value in rows:
        place = parse_row_key(key)
        if place.due_at_ms > now_ms:
            raise ValueError(f"row due at {place.due_at_ms} ms would fire at {now_ms} ms")
        try:
            row = decode_row(value)
            metadata = decode_metadata(row.headers)
            failure_id, attempt, tier = (
                (metadata.failure_id, metadata.attempt, metadata.tier) if metadata else (None, None, None)
            )
        except (DamagedRowError, DamagedMetadataError) as exc:
            found = Record(handler.topology.pending_changelog, partition, place.origin_offset, -1, key, value)
            error = (
                exc if isinstance(exc, DamagedMetadataError) else DamagedMetadataError(RETRY_VERSION, None, str(exc))
            )
            buried = bury_damaged(handler, found, error, now_ms=now_ms, topic_id=topic_id, max_bytes=max_bytes)
            publishes.extend(buried.publishes)
            observations.extend(buried.observations)
            removes.append(Removal(key, "?"))
            continue
        publishes.append(to_redelivery(row, topology=handler.topology, partition=partition))
        removes.append(Removal(key, tier or "?"))
        observations.append(
            Observation(
                event=Event.FIRED,
                handler=handler.main,
                topic=handler.topology.redelivery,
                partition=partition,
                failure_id=failure_id,
                attempt=attempt,
                tier=tier,
                due_at_ms=place.due_at_ms,
                lateness_ms=now_ms - place.due_at_ms,
            )
        )
    return Turn(publishes=tuple(publishes), removes=tuple(removes), observations=tuple(observations))

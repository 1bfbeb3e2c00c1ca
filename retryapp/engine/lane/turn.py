"""Turns: the unit of change of one handler and partition.

A turn settles a source offset, publishes records, and puts and removes rows, all or nothing. A lane carries turns in
order, many in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retryapp.core.hops import Outgoing
from retryapp.core.lifecycle import LifecycleEvent
from retryapp.core.marks import Tally
from retryapp.core.record import Record, held_bytes
from retryapp.core.topology import HandlerTopology
from retryapp.ports import Event, Observation, Removal, Row, TopicPartition

_RECORD_BYTES = 40


@dataclass(slots=True, kw_only=True)
class Turn:
    """One step of one record, or one firing of several."""

    source: TopicPartition | None = None
    """Partition whose offset this turn settles; None for a firing, which no record causes."""
    next_offset: int = -1
    """Offset after the settled record; meaningful with `source`."""
    note: str | None = None
    """Metadata of the offset, if not the usual mark."""
    publishes: tuple[Outgoing, ...] = ()
    puts: tuple[Row, ...] = ()
    removes: tuple[Removal, ...] = ()
    observations: tuple[Observation, ...] = ()
    """Reported once the turn is durable."""
    settles: int = 1
    """Number of records that it settles, if it has a source."""
    fine: bool = False
    """It settles first deliveries that succeeded: one that has published something, or several."""
    tally: Tally | None = None
    """What is counted of the main topic after this turn; None: unchanged."""
    on_settled: Callable[[bool, tuple[int, ...]], None] | None = None
    """Called with True and the offsets of `publishes` after the commit, or with False when the turn was dropped."""
    skipped: bool = False
    patient: bool = False
    """What it publishes may wait as long as an offset."""
    _size: int = field(default=-1, init=False, repr=False, compare=False)

    @property
    def urgent(self) -> bool:
        """Whether the turn changes more than an offset and must not wait for a tick."""
        sent = self.publishes and not self.patient
        return bool(sent or self.puts or self.removes or self.note is not None)

    @property
    def size(self) -> int:
        """Approximate bytes that the turn adds to a transaction."""
        if self._size < 0:
            sent = sum(held_bytes(o.key, o.value, o.headers) + _RECORD_BYTES for o in self.publishes)
            rows = sum(len(row.key) + len(row.value) + _RECORD_BYTES for row in self.puts)
            self._size = sent + rows + _RECORD_BYTES * len(self.removes)
        return self._size

    @property
    def changes(self) -> int:
        """Records that the turn adds to a transaction."""
        return len(self.publishes) + len(self.puts) + len(self.removes)


def settling(record: Record, **changes: Any) -> Turn:
    """Return a turn that settles a record."""
    return Turn(source=TopicPartition(record.topic, record.partition), next_offset=record.next_offset, **changes)


def observed(event: Event, handler: str, record: Record, **facts: Any) -> Observation:
    """Return an observation of a record; `handler` is the main topic."""
    return Observation(
        event=event, handler=handler, topic=record.topic, partition=record.partition, offset=record.offset, **facts
    )


def to_event(event: LifecycleEvent, *, topology: HandlerTopology, partition: int) -> Outgoing:
    """Return a lifecycle event as a record of the events topic."""
    return Outgoing(topology.events, partition, event.key, event.to_json(), ())

"""Turns: the unit of change of one handler and partition.

A turn settles a source offset or a due row, publishes records, and changes rows, all or nothing. A lane carries turns
in order, many in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.lifecycle import LifecycleEvent
from retryapp.core.marks import Tally, parse_mark
from retryapp.core.publication import Publication
from retryapp.core.record import Origin, Record, held_bytes
from retryapp.core.topology import HandlerTopology
from retryapp.ports import Event, LaneBatch, Observation, Row, TopicPartition

_RECORD_BYTES = 40


@dataclass(slots=True, kw_only=True)
class Turn:
    """The outcome of one delivery, or of several that went well at once."""

    source: TopicPartition | None = None
    """Partition whose offset this turn settles; None for a due row."""
    next_offset: int = -1
    """Offset after the settled record; meaningful with `source`."""
    beyond: Mapping[int, bool] | None = None
    """Offsets of the records that it settles, and whether each succeeded, where one before them still runs: the offset
    of the source stays, and its metadata names them (`core.settled`)."""
    note: str | None = None
    """Metadata of the offset, if not the usual mark."""
    publishes: tuple[Outgoing, ...] = ()
    rows: tuple[Row, ...] = ()
    claim: bytes | None = None
    """Key of the due row that was delivered: it is claimed until the turn is applied."""
    rows_note: str | None = None
    """The mark of the rows, where it changes."""
    observations: tuple[Observation, ...] = ()
    """Reported once the turn is durable."""
    settles: int = 1
    """Number of records that it settles, if it has a source; 0: a copy, or the mark of a letter."""
    fine: bool = False
    """It settles first deliveries that succeeded: one that has published something, or several."""
    tally: Tally | None = None
    """What is counted of the main topic after this turn; None: unchanged."""
    on_settled: Callable[[bool, tuple[int, ...]], None] | None = None
    """Called with True and the offsets of `publishes` after the commit, or with False when the turn was dropped."""
    skipped: bool = False
    provisional: bool = False
    """Read again, its record may come to something else: it waits for the offset (`engine.partition.beyond`)."""
    held: bool = False
    """It settles a first delivery that has not begun, or that waits for a release: its record waits in a row."""
    hurried: bool = False
    """Others wait until it is settled."""
    spare: bool = False
    """Where a topic refuses it, it is dropped, and nothing is lost."""
    patient: bool = False
    """What it publishes may wait as long as an offset."""
    control: int | None = None
    """Next offset of the control topic: it obeys or refuses commands."""
    steering: str | None = None
    """What is remembered of commands after it (`core.jobs.Steering`); None: as before."""
    refusal: HandOffRefusedError | None = None
    """Why a topic refused it, if one has."""
    number: int = field(default=0, init=False, compare=False)
    """Turns of a lane are submitted in this order."""
    known_size: int = field(default=-1, repr=False, compare=False)
    """Its `size`, where who makes it knows that; -1: it is found at the first use."""

    @property
    def urgent(self) -> bool:
        """Whether the turn changes more than an offset and must not wait for a tick."""
        sent = self.publishes and not self.patient
        told = self.note is not None or self.rows_note is not None or self.commanded
        return bool(sent or self.rows or told or self.hurried)

    @property
    def denied(self) -> bool:
        """Whether it is known that a topic of others refuses it."""
        return any(isinstance(out, Publication) and out.destination.refuses(out.partition) for out in self.publishes)

    @property
    def commanded(self) -> bool:
        """Whether it obeys or refuses commands."""
        return self.control is not None or self.steering is not None

    @property
    def moves_to(self) -> int:
        """The offset to which it moves the source's, unless that is there already; 0: it moves none."""
        return 0 if self.source is None or self.beyond else self.next_offset

    @property
    def floor(self) -> int | None:
        """The offset that no other turn may pass before this one is durable; None: it settles no offset."""
        return min(self.beyond) if self.beyond else self.moves_to - 1 if self.moves_to else None

    @property
    def size(self) -> int:
        """Approximate bytes that the turn adds to a transaction."""
        if self.known_size < 0:
            self.known_size = _RECORD_BYTES * (len(self.publishes) + len(self.rows))
            for out in self.publishes:
                self.known_size += held_bytes(out.key, out.value, out.headers)
            for identity, value, _ in self.rows:
                self.known_size += len(identity) + len(value or b"")
        return self.known_size

    @property
    def changes(self) -> int:
        """Records that the turn adds to a transaction; where it only tells of commands, a quarter of its events.

        No local store has them. After 10,000 bad commands the next one took 0.9 to 1.4 s, and so 0.8 to 1.0 s (busy).
        """
        told = len(self.publishes)
        return 1 + told // 4 if self.control is not None and not self.rows else told + len(self.rows)

    def join(self, batch: LaneBatch, positions: Mapping[TopicPartition, int]) -> None:
        """Become part of a transaction, behind the turns that are in it; `positions` were committed before."""
        if self.source is not None:
            reached = batch.offsets.get(self.source, positions.get(self.source, 0))
            batch.offsets[self.source] = max(reached, self.moves_to)  # offsets never move back
            batch.settled.update(self.beyond or {})
            if self.note is not None:
                batch.notes[self.source] = self.note
            elif self.moves_to > reached and self.source in batch.notes:
                mark = parse_mark(batch.notes.pop(self.source))
                if mark is not None:
                    batch.notes[self.source] = mark.beside(self.moves_to).text
        batch.size += self.size
        batch.tally = self.tally or batch.tally
        batch.control = batch.control if self.control is None else self.control
        batch.steering = batch.steering if self.steering is None else self.steering
        batch.publishes.extend(self.publishes)
        batch.rows.extend(self.rows)
        if self.rows_note is not None:
            batch.rows_note = self.rows_note


def settling(record: Record, **changes: Any) -> Turn:
    """Return a turn that settles a record."""
    return Turn(source=TopicPartition(record.topic, record.partition), next_offset=record.next_offset, **changes)


def observed(event: Event, handler: str, record: Record | Origin, **facts: Any) -> Observation:
    """Return an observation of a record; `handler` is the main topic."""
    return Observation(
        event=event, handler=handler, topic=record.topic, partition=record.partition, offset=record.offset, **facts
    )


def to_event(event: LifecycleEvent, *, topology: HandlerTopology, partition: int) -> Outgoing:
    """Return a lifecycle event as a record of the events topic."""
    return Outgoing(topology.events, partition, event.key, event.to_json(), ())

"""A turn: the unit of change of one handler and partition.

A turn says which source offset it settles, what it publishes, and which rows it puts and removes. A lane carries turns
in order, many in one transaction. A turn takes effect whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from retryapp.core.hops import Outgoing
from retryapp.core.lifecycle import LifecycleEvent
from retryapp.core.topology import HandlerTopology
from retryapp.ports import Observation, Removal, Row, TopicPartition


@dataclass(slots=True, kw_only=True)
class Turn:
    """One step of one record, or one firing of several."""

    source: TopicPartition | None = None
    """Partition whose offset this turn settles; None for a firing, which no record causes."""
    next_offset: int = -1
    """Offset after the settled record; meaningful with `source`."""
    publishes: tuple[Outgoing, ...] = ()
    puts: tuple[Row, ...] = ()
    removes: tuple[Removal, ...] = ()
    observations: tuple[Observation, ...] = ()
    """Reported once the turn is durable."""
    on_settled: Callable[[bool, tuple[int, ...]], None] | None = None
    """Called with True and the offsets of `publishes` after the commit, or with False when the turn was dropped."""

    @property
    def urgent(self) -> bool:
        """Tell whether the turn changes more than an offset and so must not wait for the next offsets-only commit."""
        return bool(self.publishes or self.puts or self.removes)

    @property
    def size(self) -> int:
        """Bytes that the turn adds to a transaction, about."""
        sent = sum(len(o.key or b"") + len(o.value or b"") + 64 * len(o.headers) for o in self.publishes)
        return sent + sum(len(r.key) + len(r.value) for r in self.puts) + 32 * len(self.removes)


def to_event(event: LifecycleEvent, *, topology: HandlerTopology, partition: int) -> Outgoing:
    """Return a lifecycle event as a record of the events topic."""
    return Outgoing(topology.events, partition, event.key, event.to_json(), ())

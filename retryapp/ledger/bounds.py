"""Where the ledger looks: one moment of each lane, although its topics are asked one after the other.

A lane (one handler, one partition number) moves its records in transactions, one at a time. The broker writes the end
of a transaction into each partition, and into the group's offsets, one by one. So topics are asked in an order in which
nothing can be missing, and later records are recognised:

1. *Floors*: the committed ends of the topics that copies are published to. Earlier ones are of finished transactions.
2. *Received*: the group's offsets of the main topic, while no transaction has moves of them open. So every first
   delivery with a copy below the floors is received, or settled beyond the offset. The changelog's progress records
   name those (`core.settled`); the client library cannot be asked for an offset's metadata, it reads past its end.
3. *The moment*: the changelog's end, open transactions included, once those are over. A transaction has written its
   rows before it ends, so whatever is below the floors, or received, came before the moment. Deliveries of rows move no
   offset, but every change of a row is here.
4. *Copies*: the ends of the topics of 1, in the same way. What transactions before the moment published is below them.

The ledger counts the records of 2 where they are at 3: in the table, or at an end, which is below 4. Later records are
left out. A copy that contradicts the table is a fault if it is below the floors; others may be newer than the moment
(`journey.follow`). No lane is stopped, and none is waited for longer than one transaction takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retryapp.kafka import Positions
from retryapp.kafka.admin import Place
from retryapp.ledger.traces import Topics

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of all partitions of a handler's topics."""

    begin: Mapping[Place, int]
    """First kept offset, before the moment."""
    floor: Mapping[Place, int]
    """Up to here, copies were published before the moment."""
    received: Mapping[int, int | None]
    """The group's offset of the main topic, by partition."""
    end: Mapping[Place, int]
    """Up to here topics are read: the changelog's is the moment; of the main topic, its end after the moment."""


def take_bounds(positions: Positions, topics: Topics, partitions: Mapping[str, int], on_step: OnStep | None) -> Bounds:
    """Ask the cluster, in the order of the module's text; `partitions`: topic → number.

    Raises:
        OpenTransactionError: a transaction does not end.
    """

    def places(names: tuple[str, ...]) -> list[Place]:
        return [(name, number) for name in names for number in range(partitions[name])]

    main, *_ = by_topic = [places((name,)) for name in topics.names]
    copies = places(topics.names[1 : topics.changelog])
    begin = positions.begins([place for found in by_topic for place in found])
    floor = positions.ends(copies)
    received = positions.group_offsets(topics.group, main, on_step)
    end = positions.settled_ends(by_topic[topics.changelog], on_step) | positions.settled_ends(copies, on_step)
    return Bounds(
        begin=begin,
        floor=floor,
        received={number: offset for (_, number), offset in received.items()},
        end=end | positions.ends(main),
    )

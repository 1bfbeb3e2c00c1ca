"""Where the ledger looks: one moment of each lane, although its topics are asked one after the other.

A lane (one handler, one partition number) moves its records in transactions, one at a time. The broker writes the end
of a transaction into each partition, and into the group's offsets, one by one. So topics are asked in an order in which
nothing can be missing, and later records are recognised:

1. *Floors*: the committed ends of the topics that records are handed to. Earlier records are of finished transactions.
2. *The moment*: the group's offsets of all topics of the lane, in one answer, while no transaction has moves of them
   open. So every transaction that has published below the floors and moves offsets has moved them.
3. *The changelog*: its end, open transactions included, once those are over. A transaction that has moved the offsets
   of 2 had written its rows before, so they are in there.
4. *The other topics*, in the same way. What the transactions of 2 and 3 have published is in there.

The ledger is that of the moment 2: a copy before the group's offset is handled. Rows may have left the table a little
later, up to 3; such a record is on the redelivery topic at or after the group's offset, pending in both places.
What was published later is not on a record's way to where it was at 2 (`journey.follow`); only a contradiction below
the floors is a fault. No lane is stopped, and none is waited for longer than one transaction takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retryapp.kafka import Positions
from retryapp.kafka.positions import Place
from retryapp.ledger.traces import Topics

OnWait = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of all partitions of a handler's topics."""

    begin: Mapping[Place, int]
    """First kept offset, before the moment."""
    floor: Mapping[Place, int]
    """Up to here, what was handed over was published before the moment."""
    committed: Mapping[Place, int | None]
    """The group's offsets: the moment."""
    end: Mapping[Place, int]
    """Up to here topics are read; of the main topic, its end after the moment."""


def take_bounds(
    positions: Positions, topics: Topics, partitions: Mapping[str, int], on_wait: OnWait | None = None
) -> Bounds:
    """Ask the cluster, in the order of the module's text; `partitions`: topic → number.

    Raises:
        OpenTransactionError: a transaction does not end.
    """

    def places(names: tuple[str, ...]) -> list[Place]:
        return [(name, number) for name in names for number in range(partitions[name])]

    changelog = places((topics.names[topics.changelog],))
    main = places((topics.main,))
    published = places(topics.names[1 : topics.changelog])
    begin = positions.begins([*main, *published, *changelog])
    floor = positions.ends(published)
    consumed = places(topics.names[: topics.redelivery + 1])
    rows = [[place for place in consumed if place[1] == number] for number in range(partitions[topics.main])]
    committed = positions.group_offsets(topics.group, rows, on_wait)
    end = positions.settled_ends(changelog, on_wait) | positions.settled_ends(published, on_wait)
    return Bounds(begin=begin, floor=floor, committed=committed, end=end | positions.ends(main))

"""What is left on the old partitions of a main topic that has grown: its keys may have moved to other ones.

Topics of ours that grow open the new partitions. A handler that keeps order needs what came before to have ended first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from retryapp.core.row_keys import parse_row_key, row_key
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.admin import KafkaAdmin, Place
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.positions import Positions
from retryapp.kafka.reader import first_times, fold_changelog

LOOK_S: Final = 1.0
"""Pause between two looks; after one that took longer, as long as that: each reads the whole changelog."""


class Behind(NamedTuple):
    """What is left of a handler, counted from its main topic's end when somebody first looked."""

    main: str
    unread: int
    """Offsets that its group has not passed."""
    waiting: int
    """Records that wait in its table."""


def wait_for_old(
    connection: KafkaConnection,
    topologies: Iterable[HandlerTopology],
    *,
    wait_s: float,
    on_wait: Callable[[tuple[Behind, ...]], None],
) -> tuple[Behind, ...]:
    """Wait until nothing is left on the old partitions of main topics that have grown; return what is.

    What comes after the call does not count: producers know the new partitions by then. `on_wait` gets what is left
    each time that it has changed.

    Raises:
        OpenTransactionError: a transaction does not end.
        BrokerUnreachableError: no broker answered.
    """
    positions = Positions(connection)
    grown = {topology: _old(positions, topology) for topology in topologies}
    ends = {topology: positions.ends(old) for topology, old in grown.items() if old}
    until_s = time.monotonic() + wait_s
    told: tuple[Behind, ...] = ()
    while True:
        began_s = time.monotonic()
        left = tuple(found for topology in ends for found in _left(positions, topology, ends[topology]))
        now_s = time.monotonic()
        if not left or now_s >= until_s:
            return left
        if left != told:
            on_wait(left)
            told = left
        threading.Event().wait(min(max(LOOK_S, now_s - began_s), until_s - now_s))


def _old(admin: KafkaAdmin, topology: HandlerTopology) -> list[Place]:
    """Return the partitions that were there before the main topic has grown; none where it has not."""
    states = admin.describe_topics([topology.main, topology.pending_changelog])
    main, ours = states.get(topology.main), states.get(topology.pending_changelog)
    if main is None or ours is None or ours.partitions >= main.partitions:
        return []
    return [(main.name, number) for number in range(ours.partitions)]


def _left(positions: Positions, topology: HandlerTopology, ends: dict[Place, int]) -> Iterator[Behind]:
    begins = positions.begins(ends)
    offsets = positions.group_offsets(topology.group, ends)  # a row is there before its offset
    starts = {place: begins[place] if offset is None else offset for place, offset in offsets.items()}
    ranges = {number: range(start, ends[main, number]) for (main, number), start in starts.items()}
    unread = sum(len(ranges[number]) for number in first_times(positions.connection, topology.main, ranges))
    rows = fold_changelog(positions.connection, topology.pending_changelog, lambda key, _row: row_key(0, key))
    keys = map(parse_row_key, rows.values())
    waiting = sum(key.origin_offset < ends.get((topology.main, key.partition), 0) for key in keys)
    if unread or waiting:
        yield Behind(topology.main, unread, waiting)

"""Buffer records of our topics between the fetcher and the engine: bounded, and none from before a hold.

A fetch that was under way while a partition was held comes back late. So every fetch carries the epochs of its
partitions (`Stamped`), every hold raises one, and the intake drops older records: they are read again after the seek.

A fetch also carries positions, taken in the same step: all records before one came with this fetch at the latest.
Transaction markers move a position without a record.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from retryapp.core.record import Record, held_bytes
from retryapp.ports import Flow, Stuck, TopicPartition

HIGH_WATER = 4_000
"""Records of one partition above which its fetching stops; the bound is this plus one fetch."""
HIGH_WATER_BYTES = 8 * 1024 * 1024
LOW_WATER = 1_000
"""Records below which fetching resumes, if a quarter of `HIGH_WATER_BYTES` is not exceeded either."""


class Stamped(dict[Any, Any]):
    """The records of one fetch, with the state of its partitions at that moment, taken in the consumer's thread."""

    stamp: Mapping[TopicPartition, int]
    positions: Mapping[TopicPartition, int]
    """Positions of those that are not held; missing from most fetches."""


class Intake:
    """One bounded buffer per partition."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.epoch: dict[TopicPartition, int] = defaultdict(int)
        """Rises with each hold; written in the consumer's thread only. Records with an older one are dropped."""
        self.on_records: Callable[[TopicPartition], None] = lambda _tp: None
        """Called when records of a partition came in, or its position has passed all of them."""
        self.on_assigned: Callable[[int, str, set[TopicPartition]], Awaitable[None]] | None = None
        """Called with generation, member id and active partitions after an assignment."""
        self.on_revoked: Callable[[], Awaitable[None]] | None = None
        """Called before the group takes partitions away; must be bounded in time."""
        self.on_out_of_range: Callable[[TopicPartition, int], None] = lambda _tp, _position: None
        """Called when a partition's position is out of range; it stays so until its lane opens again."""
        self.on_counted: Callable[[Mapping[str, int]], None] = lambda _counts: None
        """Called with the number of partitions of each main topic whenever the client has asked (0: unknown)."""
        self._buffers: dict[TopicPartition, deque[Record | Stuck]] = defaultdict(deque)
        self._bytes: dict[TopicPartition, int] = defaultdict(int)
        self._next: dict[TopicPartition, int] = {}
        """Offset after the last record that came in; at first, the start."""
        self._reached: dict[TopicPartition, int] = {}
        """Position before which all records came in."""
        self._flow: Flow | None = None

    def attach(self, flow: Flow) -> None:
        """Set the consumer that fills it."""
        self._flow = flow

    @property
    def flow(self) -> Flow:
        """The consumer that fills this intake, once the app has started it."""
        if self._flow is None:
            raise RuntimeError("the consumer has not been started")
        return self._flow

    def waiting(self, tp: TopicPartition) -> int:
        """Return how many records of a partition wait here."""
        return len(self._buffers[tp])

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Note where the records of partitions begin; before the seek."""
        self._next.update(starts)

    def put(
        self,
        records: Mapping[Any, list[Any]],
        stamp: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Take a fetch; records of an older epoch are dropped (they will be read again)."""
        for raw_tp, found in records.items():
            tp = TopicPartition(raw_tp.topic, raw_tp.partition)
            if found and not self._is_stale(tp, stamp):
                self._extend(tp, found)
                self.on_records(tp)
        for tp, position in (positions or {}).items():
            if not self._is_stale(tp, stamp):
                self._reached[tp] = position
                if not self._buffers[tp]:
                    self.on_records(tp)

    def _is_stale(self, tp: TopicPartition, stamp: Mapping[TopicPartition, int]) -> bool:
        return stamp.get(tp, 0) != self.epoch.get(tp, 0)

    def _extend(self, tp: TopicPartition, found: list[Record | Stuck]) -> None:
        buffer = self._buffers[tp]
        if _ends_stuck(buffer):  # read from the same position once more: one is enough, or it can be read by now
            buffer.pop()
        buffer.extend(found)
        records = (each for each in found if isinstance(each, Record))
        self._bytes[tp] += sum([held_bytes(each.key, each.value, each.headers) for each in records])
        if isinstance(last := found[-1], Record):
            self._next[tp] = last.next_offset
        if _ends_stuck(buffer) or len(buffer) >= HIGH_WATER or self._bytes[tp] >= HIGH_WATER_BYTES:
            self.flow.on_buffer_full(tp)

    def take(self, tp: TopicPartition, limit: int, max_bytes: int) -> list[Record]:
        """Take records out, in order: at most `limit`, none once `max_bytes` are exceeded, none that is stuck."""
        buffer = self._buffers[tp]
        stuck = _ends_stuck(buffer)
        limit = min(limit, len(buffer) - stuck)
        taken: list[Record] = []
        size = 0
        while len(taken) < limit and size < max_bytes and isinstance(found := buffer.popleft(), Record):
            size += held_bytes(found.key, found.value, found.headers)
            taken.append(found)
        self._bytes[tp] -= size
        if taken and not stuck and len(buffer) <= LOW_WATER and self._bytes[tp] <= HIGH_WATER_BYTES // 4:
            self.flow.on_buffer_drop(tp)
        return taken

    def stuck(self, tp: TopicPartition) -> Stuck | None:
        """Return what blocks the partition, once nothing is before it here."""
        first = next(iter(self._buffers[tp]), None)
        return first if isinstance(first, Stuck) else None

    def reached(self, tp: TopicPartition) -> int | None:
        """Return the position before which all records were taken out; None: some were not, or it is unknown."""
        return None if self._buffers[tp] else self._reached.get(tp)

    def take_passed(self, tp: TopicPartition) -> int | None:
        """Return, once, the position of an empty partition if it is past its last record."""
        reached = self.reached(tp)
        if reached is None or reached <= self._next.get(tp, reached):
            return None
        self._next[tp] = reached
        return reached

    def clear(self, tps: Iterable[TopicPartition]) -> None:
        """Drop buffered records; between a hold and a seek, never after the seek."""
        for tp in tps:
            self._buffers[tp].clear()
            self._bytes[tp] = 0
            self._next.pop(tp, None)
            self._reached.pop(tp, None)
            self.flow.on_buffer_drop(tp)


def _ends_stuck(buffer: deque[Record | Stuck]) -> bool:
    return bool(buffer) and isinstance(buffer[-1], Stuck)

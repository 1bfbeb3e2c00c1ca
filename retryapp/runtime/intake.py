"""Records of our topics between the fetcher and the engine: bounded, and none from before a hold.

A fetch that was under way while a partition was held comes back late. So every fetch carries the epochs of its
partitions (`Stamped`), every hold raises one, and the intake drops what is older: it is read again after the seek.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from faust.types import TP

from retryapp.ports import TopicPartition

HIGH_WATER = 4_000
"""Records of one partition in the intake above which its fetching stops; the bound is this plus one fetch."""
HIGH_WATER_BYTES = 8 * 1024 * 1024
"""The same in bytes of keys and values."""
LOW_WATER = 1_000
"""Records below which fetching goes on, when a quarter of `HIGH_WATER_BYTES` is not exceeded either."""


class Stamped(dict[Any, Any]):
    """What one fetch returned, with the epochs of its partitions at that moment, taken in the consumer's thread."""

    stamp: Mapping[TopicPartition, int]


class Flow(Protocol):
    """What the intake asks of the consumer that fills it."""

    def on_buffer_full(self, tp: TP) -> None:
        """Stop fetching a partition."""
        ...

    def on_buffer_drop(self, tp: TP) -> None:
        """Fetch a partition again."""
        ...


class Intake:
    """Records of our topics between the fetcher and the engine, one bounded buffer per partition."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        """All topics that the engine consumes."""
        self.epoch: dict[TopicPartition, int] = defaultdict(int)
        """Rises whenever a partition is held; written in the consumer's thread only. Records with an older one are
        dropped."""
        self.on_records: Callable[[TopicPartition], None] = lambda _tp: None
        """Called when a partition has new records."""
        self.on_assigned: Callable[[int, str, set[TopicPartition]], Awaitable[None]] | None = None
        """Called with generation, member id and active partitions when the group gave them to us."""
        self.on_revoked: Callable[[], Awaitable[None]] | None = None
        """Called before the group takes partitions away; must be bounded in time."""
        self.dropped_stale = 0
        self._buffers: dict[TopicPartition, deque[Any]] = defaultdict(deque)
        self._bytes: dict[TopicPartition, int] = defaultdict(int)
        self._flow: Flow | None = None

    def attach(self, flow: Flow) -> None:
        """Tell the intake who fills it."""
        self._flow = flow

    @property
    def flow(self) -> Flow:
        """The consumer that fills this intake.

        Raises:
            RuntimeError: the app has not started its consumer.
        """
        if self._flow is None:
            raise RuntimeError("the consumer has not been started")
        return self._flow

    def waiting(self, tp: TopicPartition) -> int:
        """Return how many records of a partition wait here."""
        return len(self._buffers[tp])

    def put(self, records: Mapping[Any, list[Any]], stamp: Mapping[TopicPartition, int]) -> None:
        """Take what a fetch returned; what belongs to an older epoch is thrown away (it will be read again)."""
        for raw_tp, found in records.items():
            tp = TopicPartition(raw_tp.topic, raw_tp.partition)
            if stamp.get(tp, 0) != self.epoch.get(tp, 0):
                self.dropped_stale += len(found)
                continue
            buffer = self._buffers[tp]
            buffer.extend(found)
            self._bytes[tp] += sum(map(_size, found))
            if len(buffer) >= HIGH_WATER or self._bytes[tp] >= HIGH_WATER_BYTES:
                self.flow.on_buffer_full(TP(*tp))
            self.on_records(tp)

    def take(self, tp: TopicPartition, limit: int, max_bytes: int) -> list[Any]:
        """Take records of a partition out, in order: at most `limit`, and no more once `max_bytes` are passed."""
        buffer = self._buffers[tp]
        taken: list[Any] = []
        size = 0
        while buffer and len(taken) < limit and size < max_bytes:
            found = buffer.popleft()
            size += _size(found)
            taken.append(found)
        self._bytes[tp] -= size
        if taken and len(buffer) <= LOW_WATER and self._bytes[tp] <= HIGH_WATER_BYTES // 4:
            self.flow.on_buffer_drop(TP(*tp))
        return taken

    def clear(self, tps: Iterable[TopicPartition]) -> None:
        """Throw buffered records away; between a hold and a seek, never after the seek."""
        for tp in tps:
            self._buffers[tp].clear()
            self._bytes[tp] = 0
            self.flow.on_buffer_drop(TP(*tp))


def _size(record: Any) -> int:
    return len(record.key or b"") + len(record.value or b"")

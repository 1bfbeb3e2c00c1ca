"""What a lane's protocol needs of Kafka's client and of the local disk; see `engine.transport` for the order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from retryapp.ports.flow import DeadLetterTable, PendingTable, SeenTable, TopicPartition


class Standing(StrEnum):
    """What the group's coordinator answers a heartbeat with the generation and member id of an assignment."""

    MEMBER = "member"
    REBALANCING = "rebalancing"
    """Still a member, but the assignment is ending."""
    GONE = "gone"
    """No member of that generation any more."""


class Committed(NamedTuple):
    """A committed offset of the group."""

    offset: int
    note: str
    """The metadata beside it."""


class Acks(Protocol):
    """Records on their way to the broker."""

    async def offsets(self) -> Sequence[int]:
        """Wait until all are acknowledged; return the offset of each, in the order in which they were given.

        Raises:
            Exception: one was refused, or nobody answered.
        """
        ...

    def on_appended(self, tell: Callable[[int], None]) -> bool:
        """Have `tell` called once the first of them is acknowledged, with the time at which the broker appended it.

        Returns:
            False when there are none.
        """
        ...


Sink = Callable[[list[Any], int], bool | None]
"""Takes `(records, next_offset)`; all records of the partition before `next_offset` have been given. True: enough."""


class TopicReader(Protocol):
    """Reads partitions up to their ends, committed records only, for all lanes of a worker."""

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first and the end offset (of committed records) of partitions."""
        ...

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """Read from `start` to the present end, a slice at a time; return that end, also when the sink had enough.

        Args:
            tp: the partition.
            start: first offset; the first that is there when that is later.
            sink: takes each slice. What it has taken stays taken, also when the reading ends with an error.
            background: nobody waits for this reading.
        """
        ...


class PendingStore(PendingTable, Protocol):
    """A pending table on a local disk: a copy of its changelog, which may lag behind it."""

    @property
    def dropped(self) -> str | None:
        """Why the copy that was found had to be thrown away, or None."""
        ...

    @property
    def last_written(self) -> int | None:
        """Offset of the last changelog record that it wrote, to be looked for there; None once it was caught up.

        None as well where it lies back so far that compaction may have taken the record away.
        """
        ...

    @property
    def next_offset(self) -> int:
        """It reflects the changelog up to here, exclusive."""
        ...

    def due_times(self, start_ms: int, stop_ms: int, limit: int) -> list[int]:
        """Return `due_at_ms` of the first rows with `start_ms <= due_at_ms < stop_ms`, rising, at most `limit`."""
        ...

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int) -> None:
        """Apply changelog records `(key, row or None)`, in order; keys that are no row keys are passed over."""
        ...

    def recovered(self) -> None:
        """Note that the changelog was read to its end."""
        ...

    def touch(self, now_ms: int) -> None:
        """Note that the table is in use."""
        ...

    def close(self) -> None:
        """Let go of it; what it holds stays."""
        ...

    def drop(self) -> None:
        """Let go of it and delete it: the changelog has everything."""
        ...


class DeadLetterStore(DeadLetterTable, Protocol):
    """A dead-letter table on a local disk: a copy of its topic, which may lag behind it."""

    @property
    def dropped(self) -> str | None:
        """Why the copy that was found had to be thrown away, or None."""
        ...

    @property
    def next_offset(self) -> int:
        """It reflects the topic up to here, exclusive."""
        ...

    def forget_before(self, first_offset: int) -> int:
        """Remove rows below an offset, a few; return how many. Call again until nothing is removed."""
        ...

    def close(self) -> None:
        """Let go of it; what it holds stays."""
        ...

    def drop(self) -> None:
        """Let go of it and delete it."""
        ...


class SeenStore(SeenTable, Protocol):
    """A table of seen events on a local disk: a copy of its changelog, which may lag behind it."""

    @property
    def dropped(self) -> str | None:
        """Why the copy that was found had to be thrown away, or None."""
        ...

    @property
    def next_offset(self) -> int:
        """It reflects the changelog up to here, exclusive."""
        ...

    def recover(self, records: Iterable[tuple[bytes, bytes | None]], next_offset: int, now_ms: int) -> None:
        """Apply changelog records `(key, row)`, in order; what is no row, or has expired, is passed over."""
        ...

    def close(self) -> None:
        """Let go of it; what it holds stays."""
        ...

    def drop(self) -> None:
        """Let go of it and delete it: the changelog has everything."""
        ...


class Passage(Protocol):
    """What stands for offsets that cannot be passed: the reader of a partition stops at it."""

    @property
    def offset(self) -> int:
        """The first of them."""
        ...

    @property
    def problem(self) -> str:
        """What is wrong, without payload."""
        ...


class Flow(Protocol):
    """What the intake asks of the consumer that fills it."""

    def on_buffer_full(self, tp: Any) -> None:
        """Stop fetching a partition."""
        ...

    def on_buffer_drop(self, tp: Any) -> None:
        """Fetch a partition again."""
        ...


class Way(Protocol):
    """The way of batches of one topic to their engine."""

    def put_now(self, batch: Any) -> bool:
        """Send a batch on; False while nobody would take it."""
        ...

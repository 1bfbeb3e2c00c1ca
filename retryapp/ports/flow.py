"""What the retry protocol awaits: time, randomness, lanes, local stores, and who is told what happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from retryapp.core.deduplicate import Seen
from retryapp.core.hops import Outgoing
from retryapp.core.tally import Tally
from retryapp.core.values import keyword_value_type


class TopicPartition(NamedTuple):
    """A partition of a topic. Equal to the client library's tuple of the same two fields."""

    topic: str
    partition: int


class Clock(Protocol):
    """Time. Due times use wall time, budgets and time-outs use monotonic time; never mix the two."""

    def wall_ms(self) -> int:
        """Return the epoch time in milliseconds, UTC."""
        ...

    def latest_ms(self) -> int:
        """Return the latest that the wall time may be: what a wait is counted from must not be taken for earlier."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that only grow; the zero is arbitrary."""
        ...

    @property
    def trusted(self) -> bool:
        """Tell whether wall time may decide what is due; while it is doubted nothing fires."""
        ...

    @property
    def known(self) -> bool:
        """Tell whether an acknowledgement has told the broker's time."""
        ...

    def counted_ms(self) -> float:
        """Return this machine's own epoch milliseconds, uncorrected; for `anchor`."""
        ...

    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        """Learn the broker's time from an acknowledgement.

        Args:
            sent_ms: `counted_ms` before the record was sent.
            acked_ms: `counted_ms` when its acknowledgement was there.
            appended_ms: when the broker appended it, by its own clock.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of monotonic time."""
        ...


class Random(Protocol):
    """Randomness for jitter; seeded in tests."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


class Event(StrEnum):
    """What an observer may be told."""

    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    FAILED = "failed"
    SCHEDULED = "scheduled"
    DEAD = "dead"
    PARKED = "parked"
    FIRED = "fired"
    PUBLISHED = "published"
    DAMAGED = "damaged"
    LANE_OPENED = "lane_opened"
    LANE_CLOSED = "lane_closed"
    LANE_FAILED = "lane_failed"
    LANE_INCOMPLETE = "lane_incomplete"
    REBALANCED = "rebalanced"


@keyword_value_type
class Observation:
    """One thing that happened. Facts that do not apply stay None. Never holds payloads."""

    event: Event
    handler: str
    """Main topic of the handler; of a rebalance, which is the group's, all main topics."""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    failure_id: str | None = None
    attempt: int | None = None
    count: int = 1
    tier: str | None = None
    due_at_ms: int | None = None
    lateness_ms: int | None = None
    duration_ms: int | None = None
    age_ms: int | None = None
    """Time since the record's first failure; None where it has not failed before."""
    reason: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    message: str | None = None
    trace: str | None = None


class Observer(Protocol):
    """Told what happened, after it is durable. Must not raise and must not block."""

    def observe(self, observation: Observation) -> None:
        """Take note of one observation."""
        ...


class Row(NamedTuple):
    """A row of the pending table: `core.rows` key and value bytes, and the tier for the counts."""

    key: bytes
    value: bytes
    tier: str


class Removal(NamedTuple):
    """A row to remove from the pending table."""

    key: bytes
    tier: str


@dataclass(slots=True)
class LaneBatch:
    """What one transaction of a lane holds: everything in it becomes visible together, or nothing does."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Next offset to read, per source partition."""
    publishes: list[Outgoing] = field(default_factory=list)
    puts: list[Row] = field(default_factory=list)
    removes: list[Removal] = field(default_factory=list)
    notes: dict[TopicPartition, str] = field(default_factory=dict)
    """What is to stand beside an offset; what a worker that goes on says there, unless given."""
    tally: Tally | None = None
    """What is counted of the main topic once this has taken effect; None: nothing else than before."""
    size: int = 0
    """Bytes of what it changes, about."""

    @property
    def changes(self) -> int:
        """Records in it, beside offsets."""
        return len(self.publishes) + len(self.puts) + len(self.removes)


@dataclass(frozen=True, slots=True)
class LaneReceipt:
    """What a committed batch got from the broker."""

    published_offsets: Sequence[int]
    """Offset of each of `LaneBatch.publishes`, in order."""
    changelog_offset: int | None
    """Highest offset written to the changelog partition; None when nothing was."""


class PendingTable(Protocol):
    """The parked records of one handler and partition, sorted by due time.

    One owner at a time; every call is synchronous and short. Keys and values are those of `core.rows`.
    """

    def due(
        self, now_ms: int, limit: int, claimed: Collection[bytes] = (), *, max_bytes: int | None = None
    ) -> tuple[list[tuple[bytes, bytes]], int | None]:
        """Return what is due and the next due time.

        Args:
            now_ms: rows with `due_at_ms <= now_ms` are due.
            limit: at most so many rows.
            claimed: keys to pass over (they are in a turn already).
            max_bytes: the values are no larger together, unless the first alone is: that one is always returned. None:
                no bound.

        Returns:
            `(key, value)` pairs sorted by due time then origin offset, at most `limit`; and `due_at_ms` of the first
            row that was not returned and is not claimed, or None when there is none.
        """
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, or None."""
        ...

    def find(self, origin_offset: int) -> bytes | None:
        """Return the key of the row whose first delivery had this offset, or None."""
        ...

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows with a key greater than `after`, in key order."""
        ...

    def write(self, puts: Sequence[Row], removes: Sequence[Removal], changelog_offset: int | None) -> None:
        """Apply a committed batch and the changelog offset up to which this table is complete, atomically."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the number of rows by tier."""
        ...


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A dead letter in the look-up table: where it lies and its headers, never its value."""

    offset: int
    """Offset on the dead-letter topic's partition."""
    headers: tuple[tuple[str, bytes | None], ...]


class DeadLetterTable(Protocol):
    """The dead letters of one handler and partition, by offset on the dead-letter topic."""

    def write(self, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        """Add rows; `next_offset`: the topic has been read up to there."""
        ...

    def page(self, before: int | None, limit: int) -> list[DeadRow]:
        """Return at most `limit` rows with an offset below `before`, newest first."""
        ...

    def find(self, failure_id: str) -> DeadRow | None:
        """Return the newest dead letter of a failure id, or None."""
        ...

    def count(self) -> int:
        """Return the number of rows."""
        ...


class SeenTable(Protocol):
    """The events of one handler and partition that were seen within the window.

    One owner at a time; every call is synchronous and short.
    """

    def find(self, identity: bytes) -> Seen | None:
        """Return the row of an event, also one that has expired and is not swept yet; None when there is none."""
        ...

    def write(self, rows: Sequence[Seen], next_offset: int, now_ms: int) -> None:
        """Put rows in, and forget some that have expired, atomically.

        Args:
            rows: a later one of an event replaces the one before.
            next_offset: the table reflects its changelog up to here, exclusive.
            now_ms: epoch milliseconds.
        """
        ...


class LaneTransport(Protocol):
    """Kafka and the local store as one lane sees them: one handler and partition, one owner.

    The engine calls `prove`, `fence`, `prove`, `committed`, `recover`, `release` to open, then `commit` one batch at a
    time. After any error it calls `hold` and `close` and begins again (DESIGN section 4, rules 2 and 3).
    """

    async def prove(self) -> None:
        """Prove that this process is still a member of the assignment's generation.

        Raises:
            NotMemberError: it is not; nobody may touch the lane's transactional id.
            RebalancingError: it is, but this assignment is ending.
        """
        ...

    async def fence(self) -> None:
        """Start a new producer under the lane's transactional id: ends and fences the former owner's transactions."""
        ...

    async def committed(self) -> Mapping[TopicPartition, int]:
        """Return the next offset of every source partition, stable because called after `fence`."""
        ...

    async def recover(self) -> None:
        """Open the local stores and bring them up to the end of their topics."""
        ...

    async def release(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set the consumer to `starts` and let records of these partitions flow."""
        ...

    async def hold(self) -> None:
        """Stop the flow of this lane's partitions; what was fetched before is thrown away."""
        ...

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """Commit a batch in one transaction. Whatever it raises, the outcome is unknown and the lane must reopen."""
        ...

    async def rest(self) -> None:
        """Note durably that nothing runs any more: the lane is let go in order."""
        ...

    def apply(self, batch: LaneBatch, receipt: LaneReceipt) -> None:
        """Write a committed batch to the local stores. On any error the local store must not be trusted again."""
        ...

    async def close(self) -> None:
        """Give the producer and the local stores up. Never raises."""
        ...


class Source(Protocol):
    """Where a partition's records come from; the engine asks for more as room appears."""

    def wanted(self, tp: TopicPartition) -> None:
        """Tell the source that there is room for records of `tp` again."""
        ...

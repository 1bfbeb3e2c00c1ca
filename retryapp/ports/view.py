"""What the web pages may ask a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from retryapp.core.record import Record
from retryapp.ports.tables import DeadRow

PAGES_PREFIX: Final = "/retries"
"""Where the pages are, on every worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerInfo:
    """A handler as the pages show it."""

    group: str
    main: str
    function: str
    policy: str
    policy_digest: str
    tiers: str
    concurrency: int
    timeout_ms: int
    topics: Mapping[str, str]
    """Role to topic name."""
    partitions: int
    retry_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition of a handler as this worker sees it."""

    partition: int
    state: str
    """`open`, `opening`, `closed`, or `elsewhere`."""
    owner_url: str | None
    """Page address of the worker that has it, when known."""
    pending: int
    pending_by_tier: Mapping[str, int]
    next_due_ms: int | None
    dead: int
    in_flight: int
    release_lag_ms: int = 0
    """Age of the oldest record in flight: what finished behind it waits for it before offsets move."""
    looked_ms: int | None = None
    """When its scheduler last looked for what is due, epoch milliseconds; None while the lane is not open."""
    pending_behind: int = 0
    """Offsets of the changelog that its pending table has yet to read before the lane opens."""
    dead_behind: int = 0
    """Offsets of the dead-letter topic that its look-up table has yet to read."""
    session: int = 0
    """How often its lane has opened since this worker got it; 0 before the first time."""
    since_ms: int | None = None
    """Since when it has been in this state; None when not known."""
    last_error: str | None
    """Why its lane is not open, or was closed last; stays when the lane is open again."""
    last_error_ms: int | None = None
    """When that was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far one partition of a handler is behind, in offsets; what is not due yet is left out.

    Offsets count transaction marks too, so each number is "at most"; 0 is exact.
    """

    partition: int
    committed: int | None
    """The group's committed offset on the main topic; None before the first commit."""
    main: int
    """First deliveries to come: main topic."""
    retry: int
    """Failed records that are not parked yet: retry topics."""
    redelivery: int
    """Fired records that the handler has not finished: redelivery topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEntry:
    """A waiting record: `core.rows` key and value."""

    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEntry:
    """A dead letter of the look-up table."""

    partition: int
    row: DeadRow


class WorkerView(Protocol):
    """What the pages of a worker may ask. Everything is bounded by `limit`; only partitions owned here are listed.

    `due_times`, `pending_page` and `dead_page` may be called from other threads than the event loop's.
    """

    def handlers(self) -> Sequence[HandlerInfo]:
        """Return the handlers of this app."""
        ...

    def url(self) -> str:
        """Return the address under which this worker has its pages, without our prefix."""
        ...

    def partitions(self, main: str) -> Sequence[PartitionInfo]:
        """Return all partitions of the handler, those of other workers with their owner's address."""
        ...

    def partition(self, main: str, number: int) -> PartitionInfo | None:
        """Return one of them, or None when there is no such partition."""
        ...

    async def lags(self, main: str) -> Sequence[PartitionLag]:
        """Return how far the partitions owned here are behind; asks the broker, or raises `BrokerUnreachableError`."""
        ...

    def due_times(self, main: str, partition: int, *, start_ms: int, stop_ms: int, limit: int) -> Sequence[int]:
        """Return `due_at_ms` of the first rows of a partition with `start_ms <= due_at_ms < stop_ms`, rising."""
        ...

    def pending_page(
        self, main: str, *, after: bytes | None, limit: int, partition: int | None = None
    ) -> Sequence[PendingEntry]:
        """Return waiting records by due time over all partitions owned here, with keys greater than `after`."""
        ...

    def pending_find(self, main: str, partition: int, origin_offset: int) -> PendingEntry | None:
        """Return the waiting record of this first delivery, or None."""
        ...

    def dead_page(self, main: str, *, partition: int, before: int | None, limit: int) -> Sequence[DeadEntry]:
        """Return dead letters of one partition, newest first, with offsets below `before`."""
        ...

    def dead_find(self, main: str, partition: int, failure_id: str) -> DeadEntry | None:
        """Return the newest dead letter of a failure id, or None."""
        ...

    async def read_record(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record from Kafka; None when it is no longer there."""
        ...

    def ready(self) -> bool:
        """Tell whether every lane that belongs to this worker is open."""
        ...

    def metrics_text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        ...

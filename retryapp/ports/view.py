"""The pages' view of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from retryapp.core.dead_index import IndexedLetter
from retryapp.core.values import keyword_value_type

PAGES_PREFIX: Final = "/retries"
ELSEWHERE: Final = "elsewhere"
"""State of a partition of another worker."""
LATE_MS: Final = 60_000
"""A record that is due for longer is late; one that others have waited for longer needs somebody to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerInfo:
    """A handler as the pages show it."""

    group: str
    main: str
    function: str
    policy: str
    schedule: str
    """The policy's schedule as text. ``policy`` names rules too, so it cannot be read back."""
    max_attempts: int | None
    policy_digest: str
    tiers: str
    order: str
    concurrency: int
    timeout_ms: int
    topics: Mapping[str, str]
    partitions: int
    retry_topics: tuple[str, ...]
    max_elapsed_ms: int | None = None
    """No wait ends later than this after the first failure; None: no deadline."""
    rule_schedules: tuple[str, ...] = ()
    """Schedules of rules that have their own."""
    dead_letters: tuple[str, ...] = ()
    """Names of the dead-letter topics of rules; ``topics`` has them as ``dlq {name}``."""
    pace: str = ""
    """What holds its deliveries back; empty: nothing."""
    discarded: int | None = None
    """Records that this worker has discarded, or letters that failed; None: it has a dead-letter topic."""
    batch: str = ""
    """The lists that it takes; empty: single records."""
    publishes: tuple[str, ...] = ()
    """Topics that it says it publishes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What ended in a handler on one worker lately."""

    span_s: float
    """Over how long it was counted: a minute, less just after a start."""
    deliveries: int
    failures: int
    late_within: Mapping[str, int] = field(default_factory=dict)
    """Retries by lateness: how many began within so many seconds of their due time; ``+Inf``: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseTrends:
    """How many deliveries of a handler failed on one worker, by cause id: in the last minutes, and in those before."""

    lately_s: float
    """Length of the last minutes; less just after a start."""
    before_s: float
    """The same of those before; 0: the worker is younger."""
    lately: Mapping[str, int] = field(default_factory=dict)
    """`OTHER_CAUSE`: failures of further causes, which are not told apart."""
    before: Mapping[str, int] = field(default_factory=dict)


@keyword_value_type
class CircuitInfo:
    """A circuit of a partition."""

    state: str
    since_ms: int
    cause: str
    """Why it opened last."""
    full: bool = False
    """As many of its retries run as may at once (`max_concurrent`)."""


@keyword_value_type
class PartitionInfo:
    """One partition of a handler as this worker sees it."""

    partition: int
    state: str
    """`open`, `opening`, `closed`, or `ELSEWHERE`."""
    owner_url: str | None = None
    """Page address of the worker that has it, when known; of one without pages, a name that is no address."""
    pending: int | None = None
    """None: not known."""
    pending_by_tier: Mapping[str, int] = field(default_factory=dict)
    stopped: int | None = None
    """Sequences that have stopped behind dead records, which count as dead alone; None: not known."""
    next_due_ms: int | None = None
    dead: int | None = None
    """None: not known."""
    as_of_ms: int | None = None
    """When `pending` to `dead` were known last, epoch milliseconds; None: they are current."""
    in_flight: int = 0
    """Records in handlers now; those that wait for their turn do not count."""
    release_lag_ms: int = 0
    """Age of the oldest record in flight: offsets move only when it has finished."""
    looked_ms: int | None = None
    """Last scan for due rows, epoch milliseconds; None while the lane is not open."""
    pending_behind: int = 0
    """Offsets of the changelog that its pending table has yet to read before the lane opens."""
    dead_behind: int = 0
    """Offsets of the dead-letter topics that their look-up tables have yet to read."""
    stalled: str | None = None
    """Why records wait although its lane is open, or None."""
    circuit: str | None = None
    """State of its circuit; None without one."""
    circuit_since_ms: int | None = None
    circuit_cause: str = ""
    """Why it opened last."""
    circuits: Mapping[str, CircuitInfo] = field(default_factory=dict)
    """Those with names."""
    paused: str | None = None
    """Who has paused the handler, or which rule its partition, and why; None: nobody."""
    paused_since_ms: int | None = None
    jobs: Mapping[str, int] = field(default_factory=dict)
    """Parts of jobs here that are not over, by state."""
    holds_due: str | None = None
    """What holds due records back although the lane is open: `pause`, `circuit` or `rate`; None: nothing."""
    blocked: str | None = None
    """What waits in the table and keeps records on the main topic; None: nothing."""
    blocked_since_ms: int | None = None
    """When the record that all others wait for failed first; None: not known, nothing is blocked, or by a cap."""
    session: int = 0
    since_ms: int | None = None
    last_error: str | None = None
    """Why its lane is not open, or was closed last; kept when the lane is open again."""
    last_error_ms: int | None = None

    def is_blocked_long(self, now_ms: int) -> bool:
        """Tell whether it is blocked for longer than the waits that an order brings with it by itself."""
        since_ms = self.blocked_since_ms
        return self.blocked is not None and (since_ms is None or now_ms - since_ms > LATE_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Lag of one partition of a handler, in offsets, without waiting records; an upper bound, and 0 is exact."""

    partition: int
    committed: int | None
    """The group's committed offset on the main topic; None before the first commit."""
    main: int
    """First deliveries to come: main topic."""
    expiring: bool = False
    """Unread records are older than half of what the main topic's retention keeps."""


@keyword_value_type
class PendingEntry:
    """A waiting record: a key of `core.row_keys`, a row of `core.rows`."""

    partition: int
    key: bytes
    value: bytes
    max_attempts: int | None = None
    """As the handler's policy has it now; None: without end, or unknown."""


@keyword_value_type
class DeadEntry:
    """A dead letter of a look-up table."""

    partition: int
    row: IndexedLetter
    letters: str | None = None
    """Name of the dead-letter topic of a rule; None: the usual one."""
    max_attempts: int | None = None
    """As the handler's policy has it now; None: without end, or unknown."""

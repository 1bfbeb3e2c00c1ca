"""Time, randomness and observers of the retry protocol, and the batch that a lane commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from retryapp.core.hops import Outgoing
from retryapp.core.marks import Tally
from retryapp.core.values import keyword_value_type


class TopicPartition(NamedTuple):
    """A partition of a topic. Equal to the client library's tuple of the same two fields."""

    topic: str
    partition: int


class Clock(Protocol):
    """Due times use wall time, budgets and time-outs use monotonic time; never mix the two."""

    def wall_ms(self) -> int:
        """Return the epoch time in milliseconds, UTC."""

    def latest_ms(self) -> int:
        """Return the latest that the wall time may be: waits are counted from it."""

    def monotonic_s(self) -> float:
        """Return seconds that only grow; the zero is arbitrary."""

    @property
    def trusted(self) -> bool:
        """Tell whether wall time is trusted; while it is not, no due row is delivered."""

    @property
    def known(self) -> bool:
        """Tell whether an acknowledgement has told the broker's time."""

    def counted_ms(self) -> float:
        """Return this machine's own epoch milliseconds, uncorrected; for `anchor`."""

    def anchor(self, *, sent_ms: float, acked_ms: float, appended_ms: int) -> None:
        """Learn the broker's time from an acknowledgement; the first two are `counted_ms` before and after."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of monotonic time."""


class Random(Protocol):
    """Randomness for jitter; seeded in tests."""

    def random(self) -> float:
        """Return a float in [0, 1)."""


class Event(StrEnum):
    """Kinds of observations."""

    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    COPY = "copy"
    """On a main topic: of a record that is due again, of this group or another."""
    HELD = "held"
    STOPPED = "stopped"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    SCHEDULED = "scheduled"
    DEFERRED = "deferred"
    DEAD = "dead"
    DISCARDED = "discarded"
    LETTER_FAILED = "letter_failed"
    PUBLISHED = "published"
    DAMAGED = "damaged"
    LANE_OPENED = "lane_opened"
    LANE_CLOSED = "lane_closed"
    LANE_FAILED = "lane_failed"
    HAND_OFF_REFUSED = "hand_off_refused"
    HAND_OFF_ACCEPTED = "hand_off_accepted"
    LANE_INCOMPLETE = "lane_incomplete"
    REBALANCED = "rebalanced"
    CIRCUIT = "circuit"
    PAUSED = "paused"
    """By a rule."""
    SUSPECTED = "suspected"
    """They may have killed their worker, and now run while those after them wait; the record is the first of them."""


@keyword_value_type
class Observation:
    """One event. Facts that do not apply stay None. Never holds payloads."""

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
    state: str | None = None
    """That a circuit has come to."""
    circuit: str | None = None
    """Its name; empty: the handler's own."""
    error_class: str | None = None
    error_type: str | None = None
    message: str | None = None
    place: str | None = None
    """File, line and function of the user's where the error was raised."""
    fingerprint: str | None = None
    """Equal for equal causes (`core.traces`)."""
    trace: str | None = None


class Observer(Protocol):
    """Receives events after they are durable. Must not raise and must not block."""

    def observe(self, observation: Observation) -> None:
        """Take one observation."""


class Row(NamedTuple):
    """A change of the pending table: the identity and the bytes of a row (`core.rows`), and its tier for the counts."""

    identity: bytes
    value: bytes | None
    """None: the record's row is removed."""
    tier: str


@dataclass(slots=True)
class LaneBatch:
    """The content of one transaction of a lane: all of it becomes visible together, or nothing does."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    publishes: list[Outgoing] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    """Changes of the pending table, in the order of their turns."""
    notes: dict[TopicPartition, str] = field(default_factory=dict)
    """Metadata of an offset, where it is not the usual mark."""
    rows_note: str | None = None
    """The mark of the rows (`core.marks`); None: unchanged."""
    tally: Tally | None = None
    """The main topic's counts after this; None: unchanged."""
    settled: dict[int, bool] = field(default_factory=dict)
    """Records of the main topic beyond its offset that are settled with this: offset, and whether it succeeded."""
    control: int | None = None
    """Next offset of the control topic; None: unchanged."""
    steering: str | None = None
    """What is remembered of commands; None: unchanged."""
    size: int = 0

    @property
    def changes(self) -> int:
        """Number of its records."""
        return len(self.publishes) + len(self.rows)


@dataclass(frozen=True, slots=True)
class LaneReceipt:
    """The broker's answer to a committed batch."""

    published_offsets: Sequence[int]
    """Offset of each of `LaneBatch.publishes`, in order."""
    changelog_offset: int | None
    """Highest offset written to the changelog partition; None when nothing was."""

"""The facts about a failed record, as plain data; ``headers.py`` encodes them."""

from __future__ import annotations

from typing import Final

from retryapp.core.record import Origin, failure_id
from retryapp.core.values import keyword_value_type, value_type

FORMAT_VERSION: Final = 1
"""Version of the headers that is written; older ones (none yet) are read."""

MAX_MESSAGE_BYTES: Final = 1_024
"""Error message: cut to this many UTF-8 bytes, before percent-encoding."""
MAX_TRACE_BYTES: Final = 4_096
"""Shortened traceback: the same; its last lines are kept."""
MAX_NAME_BYTES: Final = 256
"""Handler, error type, policy, tier and replay id: the same."""
MAX_HISTORY: Final = 20
"""Entries of the history that are kept, the newest ones."""
MAX_HISTORY_TYPE_BYTES: Final = 120
"""Error type in one entry of the history: cut to this many bytes."""
MAX_METADATA_BYTES: Final = 32 * 1_024
"""Bound of our headers, names and values: half of our topics' room over the main topic's limit."""
MAX_EPOCH_MS: Final = 253_402_300_799_999
"""Latest instant in any header: the end of the year 9999."""
MAX_COUNT: Final = 2_000_000_000
"""Largest attempt, delivery, number of tries and of replays; a count that reaches it stays there."""
HELD: Final = "held"
"""Tier of a record that waits, undelivered, for earlier ones of its sequence; its attempt and delivery are 0."""
DEFERRED: Final = "deferred"
"""Tier of a record that waits for its release by a token; its due time is the deadline."""
RELEASED: Final = "released"
"""Tier of a record that was released by a token, until its next delivery ends."""
STOPPED_TIER: Final = "stopped"
"""Tier of a dead record in the row that stops its sequence."""
NAMELESS: Final = "?"
"""Replaces the empty name that a class or a function may have."""


def clamped(instant_ms: int, least: int = 0) -> int:
    """Return the nearest instant that a header can hold: Kafka accepts timestamps before 1970 and after 9999."""
    return min(max(instant_ms, least), MAX_EPOCH_MS)


@value_type
class HistoryEntry:
    """One failed attempt, in short."""

    attempt: int
    failed_ms: int
    error_type: str


@keyword_value_type
class RetryMetadata:
    """The content of our headers: whose failure, which attempt, when again or why not. The codec checks ranges."""

    version: int = FORMAT_VERSION
    group: str
    handler: str
    origin: Origin
    """First delivery; set once."""
    origin_timestamp_ms: int
    """The original record's timestamp; -1 where it had none."""
    attempt: int
    """Number of the attempt that failed last, as the policy counts. 0: none is spent yet (held, replay, outage)."""
    delivery: int
    """Number of the delivery that ended last; the next is this + 1. Never starts again: a replay takes a number."""
    hot_attempts: int = 1
    """How many tries the delivery that ended last took."""
    due_at_ms: int | None = None
    """Earliest start of the next attempt, epoch milliseconds; None when dead."""
    started_ms: int
    """When the attempt that failed last began."""
    worker: str | None = None
    """The worker that ran it, as ``host/worker-1``; None: not known, or no attempt has failed."""
    policy: str
    tier: str | None = None
    """Text of the nominal delay that is waited for; None when dead."""
    rule: str | None = None
    """The rule that decided: of a record that waits, one with a schedule of its own; None: no rule, or no such one."""
    rule_failures: int = -1
    """Failures in a row under the schedule that gave the wait; -1: as many as attempts."""
    first_failed_ms: int
    """When it failed first (in this replay, if it is one)."""
    counted_from_ms: int | None = None
    """From when ``max_elapsed`` counts: the first attempt spent, without holds; None: `first_failed_ms`."""
    last_failed_ms: int
    error_type: str
    error_message: str
    """Its message, at most ``MAX_MESSAGE_BYTES``."""
    error_trace: str | None = None
    """Shortened traceback; dead letters only."""
    reason: str | None = None
    """Why the record is dead, a `DeadReason`; None while it waits."""
    original_reason: str | None = None
    """With reason ``too-large``: the reason before its size was known."""
    fingerprint: str
    history: tuple[HistoryEntry, ...] = ()
    """Last failed attempts, oldest first, at most ``MAX_HISTORY``."""
    replay_id: str | None = None
    """Which replay sent it last; None if never replayed."""
    replays: int = 0
    letter: str | None = None
    """The dead letter that was replayed last, as ``name:offset``; without a name, on the usual topic."""
    edited: int | None = None
    """Somebody has edited it for a replay; how often with a new idempotency key. None: it is as on the main topic."""
    null_value: bool = False
    """The original value was null; it travels as empty."""
    no_payload: bool = False
    """A copy without value and foreign headers (`hops.without_payload`)."""

    @property
    def held(self) -> bool:
        """Whether it was never delivered, and what it says of a failure is empty."""
        return self.tier == HELD and not self.delivery

    @property
    def failure_id(self) -> str:
        """``group/topic@id/partition/offset``: the same in every copy."""
        return failure_id(self.group, self.origin)

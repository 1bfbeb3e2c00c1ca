"""When a record failed, by its metadata: a delivery that was deferred, or that never began, is no failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from retryapp.core.classify import DeadReason
from retryapp.core.hops import DEFERRAL, REPLAY
from retryapp.core.metadata import DEFERRED, MAX_HISTORY, NAMELESS, RELEASED, RetryMetadata

NOT_RUN: Final = {DeadReason.CANCELLED, DeadReason.OVERFLOW}
"""Reasons of records that are dead without another run: the error that they name is that of the run before."""


class EndedAttempt(NamedTuple):
    """One entry of the history."""

    attempt: int
    """As the policy counts; 0: none was spent yet. Of a deferred delivery, the number of the attempt that it was."""
    replay: int | None
    """In which replay; 0: before the first one; None: it is not known in which. Only of a record that is dead without
    a run since its last replay may it be that one."""
    ended_ms: int
    error_type: str
    deferred: bool


class Failures(NamedTuple):
    """What is known of the failures of a record."""

    first_ms: int | None
    """The first one of all that are known, also before a replay; None: it has not failed."""
    is_first: bool
    """Whether none came before: metadata keeps the last 20, and a large dead letter none."""
    replay_first_ms: int | None
    """The first one of its last replay; None: it was not replayed, or has not failed since."""
    last_ms: int | None
    """None: it has not failed, or it is not known when."""
    deferred_ms: int | None
    """When its last delivery was deferred; None: it ended otherwise."""
    attempts: list[EndedAttempt]
    """The oldest first."""


def has_failed(metadata: RetryMetadata) -> bool:
    """Tell whether a record has failed, by what its metadata says: not if it was deferred, or never ran."""
    if not metadata.history:
        return not metadata.held and metadata.error_type not in (NAMELESS, DeadReason.CANCELLED)
    return any(not each.deferred for each in _attempts(metadata))


def failures_of(metadata: RetryMetadata) -> Failures:
    """Return what the metadata of a record that waits or is dead knows of its failures."""
    attempts = [*_attempts(metadata)]
    failed = [each for each in attempts if not each.deferred]
    own = [each.ended_ms for each in failed if metadata.replays and each.replay == metadata.replays]
    deferred_ms = attempts[-1].ended_ms if attempts and attempts[-1].deferred else None
    return Failures(
        first_ms=_first_ms(metadata, failed),
        is_first=not metadata.replays or _is_whole(metadata, attempts),
        replay_first_ms=own[0] if own else None,
        last_ms=_last_ms(metadata, failed, is_last=deferred_ms is None),
        deferred_ms=deferred_ms,
        attempts=attempts,
    )


def _is_whole(metadata: RetryMetadata, attempts: list[EndedAttempt]) -> bool:
    """Tell whether the history lacks none: it keeps the last ones, and a dead letter that is too large drops all.

    Not every delivery has an entry: some records die without another run, and a first one may be attempt 2 or later.
    """
    if len(attempts) >= metadata.delivery - metadata.replays:
        return True
    return 0 < len(attempts) < MAX_HISTORY and attempts[0].replay == 0


def _attempts(metadata: RetryMetadata) -> Iterator[EndedAttempt]:
    earlier, most = 0 if metadata.replays < 2 else None, len(metadata.history)
    own = _of_last_replay(metadata)
    is_unknown = own == most and not metadata.attempt and metadata.reason in NOT_RUN  # no number says where it began
    last = None if metadata.replays and is_unknown else metadata.replays
    for at, entry in enumerate(metadata.history, 1):
        replay = last if at > most - own else earlier
        is_last_deferred = at == most and metadata.tier in (DEFERRED, RELEASED)
        deferred = is_last_deferred or entry.error_type == DEFERRAL
        yield EndedAttempt(entry.attempt + deferred, replay, entry.failed_ms, entry.error_type, deferred)


def _of_last_replay(metadata: RetryMetadata) -> int:
    """Return how many entries of the history, the last ones, are of attempts that ended since the last replay.

    Attempts begin anew with it, and `first_failed_ms` does with the first one that ends.
    """
    own, attempt = 0, metadata.attempt
    for entry in reversed(metadata.history if metadata.tier != REPLAY else ()):
        if entry.attempt > attempt or entry.failed_ms < metadata.first_failed_ms:
            break
        own, attempt = own + 1, entry.attempt
    return own


def _first_ms(metadata: RetryMetadata, failed: list[EndedAttempt]) -> int | None:
    if not has_failed(metadata):
        return None
    is_cut = not failed or metadata.first_failed_ms < metadata.history[0].failed_ms
    return metadata.first_failed_ms if is_cut else failed[0].ended_ms


def _last_ms(metadata: RetryMetadata, failed: list[EndedAttempt], *, is_last: bool) -> int | None:
    """Return when it failed last; `is_last`: its last delivery was not deferred."""
    if not has_failed(metadata):
        return None
    if is_last and metadata.tier != REPLAY and metadata.reason not in NOT_RUN:
        return metadata.last_failed_ms
    return failed[-1].ended_ms if failed else None

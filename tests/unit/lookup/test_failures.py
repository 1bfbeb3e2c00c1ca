"""When a record failed, by its metadata: deferred, held and cancelled records, and those that were replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import WAITING

from retryapp.core.classify import DeadReason, classify
from retryapp.core.decide import Dead, RetryAt
from retryapp.core.hops import after_failure, cancelled, not_run_again, replayed
from retryapp.core.metadata import DEFERRED, HELD, MAX_HISTORY, HistoryEntry, RetryMetadata
from retryapp.core.verdicts import Defer
from retryapp.lookup.failures import failures_of, has_failed


class Waits(Defer):
    """A verdict of the user's own."""


def after(previous: RetryMetadata | None, error: BaseException, at_ms: int, *, dead: bool = False) -> RetryMetadata:
    """Return the metadata after a delivery that has raised an error then."""
    failure = classify(error)
    attempt = 0 if previous is None else previous.attempt
    tier = DEFERRED if failure.deferred else "1m"
    decision = Dead(DeadReason.EXHAUSTED) if dead else RetryAt(at_ms + 60, 60, tier)
    told: Any = {name: getattr(WAITING, name) for name in ("group", "handler", "origin", "origin_timestamp_ms")}
    return after_failure(
        previous, **told, attempt=attempt + (not failure.deferred), started_ms=at_ms, failed_ms=at_ms,
        policy_digest="p", failure=failure, decision=decision, spent=not failure.deferred,
    )  # fmt: skip


def died(*times_ms: int, previous: RetryMetadata | None = None) -> RetryMetadata:
    """Return the metadata of a record that has failed at these times, and is dead since the last one."""
    for number, at_ms in enumerate(times_ms, 1):
        previous = after(previous, ValueError("no"), at_ms, dead=number == len(times_ms))
    assert previous is not None
    return previous


def again(letter: RetryMetadata, *times_ms: int) -> RetryMetadata:
    """Return the same after a replay, in which it has died at the last of these times."""
    waits = replayed(letter, letter=":7", replay_id="j1", now_ms=letter.last_failed_ms + 1)
    return died(*times_ms, previous=waits) if times_ms else waits


def test_the_first_failure_is_that_before_all_replays() -> None:
    """The header is that of the last replay; each attempt says in which it was, as far as that is known."""
    once = again(died(100, 200), 300, 400)
    assert once.first_failed_ms == 300
    found = failures_of(once)
    assert (found.first_ms, found.is_first, found.replay_first_ms, found.last_ms) == (100, True, 300, 400)
    assert [(each.replay, each.attempt) for each in found.attempts] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    twice = failures_of(again(once, 500))
    assert [(each.replay, each.attempt) for each in twice.attempts][-2:] == [(None, 2), (2, 1)]
    assert (twice.first_ms, twice.replay_first_ms) == (100, 500)
    waits = failures_of(again(once))
    assert (waits.first_ms, waits.replay_first_ms, waits.last_ms) == (100, None, 400), "it has not run again yet"
    assert {each.replay for each in waits.attempts} == {None}


@pytest.mark.parametrize("before", [died(100, 200), again(died(100), 200)])
def test_what_ended_in_a_replay_is_not_before_it(before: RetryMetadata) -> None:
    """No attempt may be spent in it: of one that was deferred and then cancelled, all had ended before."""
    replays = before.replays + 1
    deferred = after(again(before), Defer("1h", "the bank's answer"), 300)
    for metadata in (deferred, cancelled(deferred, "", 400), not_run_again(deferred, DeadReason.OVERFLOW, 400)):
        ended = [(each.replay == replays, each.deferred) for each in failures_of(metadata).attempts]
        assert ended == [(False, False), (False, False), (True, True)]
    again_cancelled = failures_of(cancelled(again(before), "", 300))
    assert replays not in {each.replay for each in again_cancelled.attempts}, "it has not run again"


def test_whose_deferrals_are_is_not_known_without_an_attempt() -> None:
    """They were said to be of the replay, in which the record was cancelled, or dropped, before it ran."""
    waits = again(cancelled(after(None, Defer("1h", "the bank's answer"), 100), "", 200))
    for letter in (cancelled(waits, "", 300), not_run_again(waits, DeadReason.OVERFLOW, 300)):
        found = failures_of(letter)
        assert ({each.replay for each in found.attempts}, found.replay_first_ms) == ({None}, None)


def test_a_worker_whose_clock_is_behind_moves_no_attempt_into_a_replay() -> None:
    """The last ones before it ended later than the first one since."""
    found = failures_of(again(died(100, 200, 300), 250, 350))
    assert [(each.replay, each.attempt) for each in found.attempts] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]


def test_a_first_failure_that_may_be_missing_says_so() -> None:
    """The history has the last ones, and a large dead letter none; who was never replayed has it in a header."""
    many = died(*range(100, 100 + 3 * MAX_HISTORY))
    assert (failures_of(many).first_ms, failures_of(many).is_first) == (100, True)
    later = failures_of(again(many, 1_000))
    assert (later.first_ms, later.is_first) == (141, False), "the oldest one that it still has"
    bare = failures_of(again(replace(died(100, 200), history=()), 300))
    assert (bare.first_ms, bare.is_first) == (300, False)


def test_a_delivery_without_an_entry_is_no_failure_that_is_missing() -> None:
    """Records die without another run, and a first delivery may be a later attempt: the history lacks none then."""
    waits = after(None, ValueError("no"), 100)
    cancelled_once = failures_of(again(cancelled(waits, "", 150), 300))
    full = failures_of(again(not_run_again(waits, DeadReason.OVERFLOW, 150), 300))
    tried = replace(died(100), attempt=3, delivery=3, history=(HistoryEntry(3, 100, "E"),))
    for found in (cancelled_once, full, failures_of(again(tried, 300))):
        assert (found.first_ms, found.is_first) == (100, True)


@pytest.mark.parametrize("verdict", [Defer("1h", "the bank's answer"), Waits("1h")])
def test_a_record_that_was_deferred_has_not_failed(verdict: Defer) -> None:
    """Nor if it is cancelled then; once it has failed, the deferral is no first failure."""
    deferred = after(None, verdict, 100)
    found = failures_of(deferred)
    assert (found.first_ms, found.last_ms, found.deferred_ms, has_failed(deferred)) == (None, None, 100, False)
    assert [(each.attempt, each.deferred) for each in found.attempts] == [(1, True)]
    gone = failures_of(cancelled(deferred, "", 150))
    assert (gone.first_ms, gone.last_ms) == (None, None)
    failed = failures_of(after(deferred, ValueError("no"), 200))
    assert (failed.first_ms, failed.last_ms, failed.deferred_ms) == (200, 200, None)
    behind = failures_of(after(after(None, ValueError("no"), 100), verdict, 200))
    assert (behind.first_ms, behind.last_ms, behind.deferred_ms) == (100, 100, 200)


def test_a_record_that_never_ran_has_not_failed() -> None:
    """Held behind others of its key, and dead without a run; when it was cancelled is no failure either."""
    held = replace(WAITING, tier=HELD, attempt=0, delivery=0, error_type="?", error_message="")
    for metadata in (held, cancelled(held, "cancelled before its first attempt", 200)):
        assert (has_failed(metadata), failures_of(metadata).last_ms) == (False, None)
    letter = cancelled(after(None, ValueError("no"), 100), "", 200)
    assert (letter.last_failed_ms, failures_of(letter).last_ms) == (200, 100)
    bare = failures_of(replace(WAITING, history=()))
    assert (bare.first_ms, bare.last_ms) == (1, 1), "a history that was dropped is no sign that nothing has failed"

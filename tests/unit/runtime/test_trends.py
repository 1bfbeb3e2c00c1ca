"""How often each cause failed in the last minutes and before, for the pages."""

from __future__ import annotations

import pytest

from retryapp.core.causes import MAX_CAUSES, OTHER_CAUSE, cause_id
from retryapp.ports import CauseTrends, Event, Observation
from retryapp.runtime.observe.trends import CauseWatch
from retryapp.testing import VirtualClock
from retryapp.web.figures import trend_of

MINUTE_MS = 60_000


def fail(watch: CauseWatch, message: str, count: int = 1, event: Event = Event.FAILED, error: str = "E") -> str:
    watch.observe(
        Observation(event=event, handler="orders", error_type=error, fingerprint="f", message=message, count=count)
    )
    return cause_id(error, "f", message)


def test_failures_count_by_cause_in_the_last_minutes_and_before() -> None:
    """What is older is forgotten, and what is no failure never counts."""
    clock = VirtualClock(0)
    watch = CauseWatch(clock)
    clock.advance(MINUTE_MS)
    ledger = fail(watch, "HTTP 503", 10)
    fail(watch, "HTTP 503", event=Event.SUCCEEDED)
    clock.advance(5 * MINUTE_MS)
    shard = fail(watch, "shard 7 is read-only", 4)
    fail(watch, "shard 9 is read-only", 2)
    assert watch.of("orders") == CauseTrends(lately_s=240, before_s=120, lately={shard: 6}, before={ledger: 10}), (
        "the minute that has begun counts as far as it has come"
    )
    clock.advance(MINUTE_MS // 2)
    assert watch.of("orders").lately_s == 270
    assert watch.of("flights") == CauseTrends(lately_s=270, before_s=120)
    clock.advance(5 * MINUTE_MS)
    found = watch.of("orders")
    assert (found.lately, found.before, found.before_s) == ({}, {shard: 6}, 300)
    clock.advance(5 * MINUTE_MS)
    assert watch.of("orders") == CauseTrends(lately_s=270, before_s=300)


def test_a_worker_that_has_just_begun_knows_nothing_of_before() -> None:
    """That is unknown, and no zero."""
    clock = VirtualClock(0)
    watch = CauseWatch(clock)
    clock.advance(30_000)
    cause = fail(watch, "HTTP 503", 3)
    assert trend_of([watch.of("orders")], cause) == (6.0, None)


def test_causes_are_bounded() -> None:
    """Those beyond are unknown, and those that were counted go on."""
    clock = VirtualClock(0)
    watch = CauseWatch(clock)
    clock.advance(MINUTE_MS)
    names = [fail(watch, "x", error=f"E{number}") for number in range(MAX_CAUSES + 5)]
    fail(watch, "x", error="E0")
    found = watch.of("orders")
    assert len(found.lately) == MAX_CAUSES + 1
    assert (found.lately[names[0]], found.lately[OTHER_CAUSE]) == (2, 5)
    assert trend_of([found], names[0])[0] == 2
    assert trend_of([found], names[-1]) == (None, None)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], (2.0, 4.0)),
        ([CauseTrends(lately_s=150, before_s=300, lately={"c": 10}, before={"d": 1})], (6.0, 4.0)),
        ([CauseTrends(lately_s=150, before_s=0, lately={"c": 10})], (6.0, None)),
        ([None], (None, None)),
    ],
)
def test_workers_add_up_each_with_its_own_span(others: list[CauseTrends | None], expected: object) -> None:
    """What one does not know, nobody knows of the group."""
    ours = CauseTrends(lately_s=300, before_s=300, lately={"c": 10}, before={"c": 20})
    assert trend_of([ours, *others], "c") == expected
    assert trend_of([], "c") == (None, None)

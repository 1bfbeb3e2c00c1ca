"""What ended in the last minutes, for pages and `top`: how much of each handler, and how often each cause failed."""

from __future__ import annotations

import pytest

from retryapp.core.causes import MAX_CAUSES, OTHER_CAUSE, cause_id
from retryapp.core.rules import ErrorClass
from retryapp.ports import Activity, CauseTrends, Event, Observation
from retryapp.runtime.observe.metrics import MetricsObserver
from retryapp.runtime.observe.recent import LOOK_S, SPAN_S, Recent
from retryapp.runtime.observe.trends import CauseWatch
from retryapp.testing import VirtualClock
from retryapp.web.figures import Rates, rates_of, trend_of

LOOK_MS = round(LOOK_S * 1_000)
MINUTE_MS = 60_000


def test_the_last_minute_is_what_was_counted_since_a_look_a_minute_ago() -> None:
    """Of each handler; what ended before has gone, however long the worker runs."""
    clock, metrics = VirtualClock(0), MetricsObserver()
    metrics.begin("orders")
    recent = Recent(metrics.counted, clock)
    assert recent.of("orders") is None, "not known"

    def end(late_ms: int | None, error: ErrorClass | None = None) -> None:
        event = Event.SUCCEEDED if error is None else Event.FAILED
        facts = {} if error is None else {"error_class": str(error)}
        metrics.observe(Observation(event=event, handler="orders", lateness_ms=late_ms, **facts))

    recent.look()
    end(7), end(None), end(None, ErrorClass.RETRYABLE)
    for _ in range(2):
        clock.advance(LOOK_MS)
        recent.look()
    first = Activity(span_s=2 * LOOK_S, deliveries=3, failures=1)
    found = recent.of("orders")
    assert found is not None
    assert (found.span_s, found.deliveries, found.failures) == (first.span_s, 3, 1)
    assert (found.late_within.get("0.005"), found.late_within["0.01"], found.late_within["+Inf"]) == (None, 1, 1)
    assert recent.of("flights") == Activity(span_s=2 * LOOK_S, deliveries=0, failures=0)
    end(90_000), end(30, ErrorClass.RETRYABLE)
    for _ in range(round(SPAN_S / LOOK_S)):
        clock.advance(LOOK_MS)
        recent.look()
    found = recent.of("orders")
    assert found is not None
    assert (found.span_s, found.deliveries, found.failures) == (SPAN_S, 2, 1)
    assert rates_of([found]) == Rates(
        deliveries_per_min=2, failures_per_min=1, retries=2, late_p99_ms=None, workers=1, of_workers=1, is_least=False
    ), "one of two has no bound"
    for _ in range(round(SPAN_S / LOOK_S)):
        clock.advance(LOOK_MS)
        recent.look()
    assert recent.of("orders") == Activity(span_s=SPAN_S, deliveries=0, failures=0)


def test_a_page_of_many_handlers_looks_at_no_counter() -> None:
    """With 100 handlers the event loop stood still for seconds."""
    clock, metrics = VirtualClock(0), MetricsObserver()
    looks: list[int] = []
    recent = Recent(lambda: looks.append(1) or metrics.counted(), clock)
    for _ in range(2):
        recent.look()
        clock.advance(LOOK_MS)
    assert [recent.of(f"handler-{number}") for number in range(100)] == [
        Activity(span_s=LOOK_S, deliveries=0, failures=0)
    ] * 100
    assert len(looks) == 2


def test_workers_add_up() -> None:
    """Each with its own span; one that has just begun has counted nothing yet."""
    old = Activity(span_s=60, deliveries=60, failures=6, late_within={"0.01": 98, "0.05": 98, "+Inf": 98})
    young = Activity(span_s=15, deliveries=30, failures=0, late_within={"0.05": 2, "+Inf": 2})
    assert rates_of([old, young, Activity(span_s=0, deliveries=0, failures=0)]) == Rates(
        deliveries_per_min=180, failures_per_min=6, retries=100, late_p99_ms=50, workers=2, of_workers=3, is_least=True
    )
    unowned = rates_of([old], unowned=True)
    assert unowned is not None
    assert (unowned.workers, unowned.of_workers, unowned.is_least) == (1, 1, True)
    assert rates_of([None]) is None


# -- causes ------------------------------------------------------------------------------------------------------------


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
    """That is unknown, and no zero; nor is what has not failed yet since then. After a restart all causes had 0."""
    clock = VirtualClock(0)
    watch = CauseWatch(clock)
    clock.advance(30_000)
    cause = fail(watch, "HTTP 503", 3)
    assert trend_of([watch.of("orders")], cause) == (6.0, None)
    assert trend_of([watch.of("orders")], "c1-other") == (None, None)
    clock.advance(30_000)
    assert trend_of([watch.of("orders")], "c1-other") == (0.0, None)


def test_a_worker_that_has_just_begun_and_delivered_nothing_is_not_counted() -> None:
    """Its rate was 0 at once, although partitions were still being opened."""
    young = Activity(span_s=LOOK_S, deliveries=0, failures=0)
    assert rates_of([young]) is None
    rates = rates_of([young, Activity(span_s=SPAN_S, deliveries=0, failures=0)])
    assert rates is not None
    assert (rates.deliveries_per_min, rates.workers, rates.of_workers, rates.is_least) == (0, 1, 2, True)


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
def test_trends_of_workers_add_up_each_with_its_own_span(others: list[CauseTrends | None], expected: object) -> None:
    """What one does not know is unknown of the group."""
    ours = CauseTrends(lately_s=300, before_s=300, lately={"c": 10}, before={"c": 20})
    assert trend_of([ours, *others], "c") == expected
    assert trend_of([], "c") == (None, None)

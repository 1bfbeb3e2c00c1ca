"""What ended in the last minute, for pages and `top`."""

from __future__ import annotations

from retryapp.core.rules import ErrorClass
from retryapp.ports import Activity, Event, Observation
from retryapp.runtime.observe.metrics import MetricsObserver
from retryapp.runtime.observe.recent import LOOK_S, SPAN_S, Recent
from retryapp.testing import VirtualClock
from retryapp.web.figures import Rates, rates_of

LOOK_MS = round(LOOK_S * 1_000)


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

"""How busy a handler was lately: deliveries and failures a minute, and how late retries began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from retryapp.ports import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The last minute of a handler, of all workers that have answered."""

    deliveries_per_min: float
    failures_per_min: float
    retries: int
    """Retries whose lateness was measured."""
    late_p99_ms: float | None
    """99 of 100 began within so many milliseconds of their due time (an upper bound); None: no bound is known."""


def rates_of(activities: Iterable[Activity | None]) -> Rates | None:
    """Return the sum of what workers have counted; None where none has.

    >>> rates_of([Activity(span_s=30, deliveries=100, failures=1, late_within={"0.01": 90, "0.1": 100, "+Inf": 100})])
    Rates(deliveries_per_min=200.0, failures_per_min=2.0, retries=100, late_p99_ms=100.0)
    """
    known = [each for each in activities if each is not None and each.span_s > 0]
    if not known:
        return None
    late: Counter[str] = Counter()
    for each in known:
        late.update(each.late_within)
    bounds = sorted((float(bound) * 1_000, count) for bound, count in late.items())
    retries = bounds[-1][1] if bounds else 0

    late_ms = next((bound for bound, count in bounds[:-1] if retries and count >= 0.99 * retries), None)
    return Rates(
        deliveries_per_min=round(sum(60 * each.deliveries / each.span_s for each in known), 1),
        failures_per_min=round(sum(60 * each.failures / each.span_s for each in known), 1),
        retries=retries,
        late_p99_ms=None if late_ms is None else round(late_ms, 3),
    )

"""Handlers and partitions as plain facts, ready for JSON and for a template, and how busy a handler was lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final

from retryapp.core.causes import OTHER_CAUSE
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.lookup.records import Facts, known_sum
from retryapp.ports import ELSEWHERE, Activity, CauseTrends, CircuitInfo, PartitionInfo

OPEN: Final = "open"
"""State of a partition that can be read."""
CLOSED: Final = "closed"
"""State of a circuit that lets everything run."""
LEAST_S: Final = 50.0
"""Of a worker that has counted for a shorter time and found none, how many a minute is not known yet."""
_OF_PARTITION: Final = [each.name for each in fields(PartitionInfo)]
_KNOWN_ELSEWHERE: Final = {"partition", "state", "owner_url", "since_ms", "last_error", "last_error_ms"}


def web_url(url: str | None) -> str | None:
    """Return a worker's address without its last slash; None for what no link may point to."""
    return url.rstrip("/") if url is not None and url.startswith(("http://", "https://")) else None


def owner_of(info: PartitionInfo) -> str | None:
    """Return the address of the worker that has a partition: empty for this one, None where it is not known."""
    return web_url(info.owner_url) if info.state == ELSEWHERE else ""


def other_owners(infos: Iterable[PartitionInfo]) -> set[str]:
    """Return the addresses of the other workers that have some of these partitions."""
    return {owner for info in infos if (owner := owner_of(info))}


def partition_part(info: PartitionInfo) -> Facts:
    """Return what `asdict` does, in a tenth of its time: a page has each partition of a group twice."""
    facts = {name: getattr(info, name) for name in _OF_PARTITION}
    return {**facts, "circuits": {name: asdict(each) for name, each in info.circuits.items()}}


def partition_facts(info: PartitionInfo) -> Facts:
    """Return one line of the partition table; numbers of other workers' partitions are None."""
    facts = {**partition_part(info), "owner_url": web_url(info.owner_url)}
    if info.state != ELSEWHERE:
        return facts
    return {name: value if name in _KNOWN_ELSEWHERE else None for name, value in facts.items()}


def open_circuits(info: PartitionInfo) -> dict[str, CircuitInfo]:
    """Return the circuits of a partition that are not closed, by name; that of the handler's own is empty."""
    own = CircuitInfo(state=info.circuit or CLOSED, since_ms=info.circuit_since_ms or 0, cause=info.circuit_cause)
    return {name: each for name, each in {"": own, **info.circuits}.items() if each.state != CLOSED}


def totals(infos: Sequence[PartitionInfo]) -> Facts:
    """Return the sums over the partitions of all workers that are known, with the age of the oldest number.

    A sum of nothing is None: not known. Partitions of workers that have not answered are unknown; `left_out` says which
    are missing in the sums of waiting, of dead and of running records.
    """
    known = [item for item in infos if item.state != ELSEWHERE]
    left_out = {
        name: [item.partition for item in infos if item.state == ELSEWHERE or getattr(item, name) is None]
        for name in ("pending", "dead", "in_flight")
    }
    by_tier = sum((Counter(item.pending_by_tier) for item in known), Counter[str]())
    return {
        "partitions_open": known_sum(int(item.state == OPEN) for item in known),
        "pending": known_sum(item.pending for item in known),
        "pending_by_tier": {tier: by_tier[tier] for tier in sorted(by_tier, key=_length)},
        "stopped": known_sum(item.stopped for item in known),
        "next_due_ms": min((item.next_due_ms for item in known if item.next_due_ms is not None), default=None),
        "dead": known_sum(item.dead for item in known),
        "as_of_ms": min((item.as_of_ms for item in known if item.as_of_ms is not None), default=None),
        "left_out": left_out,
        "unknown_partitions": sorted({*left_out["pending"], *left_out["dead"]}),
        "in_flight": known_sum(item.in_flight for item in known),
    }


def _length(tier: str) -> tuple[float, str]:
    """Return what sorts tiers by their delays; names that are no delay come last."""
    try:
        return parse_duration_ms(tier), tier
    except InvalidDurationError:
        return float("inf"), tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The last minute of a handler, of all workers that have answered lately."""

    deliveries_per_min: float
    failures_per_min: float
    retries: int
    """Retries whose lateness was measured."""
    late_p99_ms: float | None
    """99 of 100 began within so many milliseconds of their due time (an upper bound); None: no bound is known."""
    workers: int
    """How many workers have been counted."""
    of_workers: int
    """How many are known, those that have not answered included."""
    is_least: bool
    """Whether some have not been counted: then the rates are the least that there may be."""


def rates_of(activities: Iterable[Activity | None], *, unowned: bool = False) -> Rates | None:
    """Return the sum of what workers have counted; None where none has.

    Args:
        activities: of each worker that is known; None: it has not answered, or counts nothing.
        unowned: whether there are partitions whose worker is not known.

    >>> busy = Activity(span_s=30, deliveries=100, failures=1, late_within={"0.01": 90, "0.1": 100, "+Inf": 100})
    >>> rates = rates_of([busy, None])
    >>> rates.deliveries_per_min, rates.late_p99_ms, rates.workers, rates.of_workers, rates.is_least
    (200.0, 100.0, 1, 2, True)
    """
    every = [*activities]
    known = [each for each in every if each is not None and each.span_s > (0 if each.deliveries else LEAST_S)]
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
        workers=len(known),
        of_workers=len(every),
        is_least=unowned or len(known) < len(every),
    )


def trend_of(trends: Iterable[CauseTrends | None], cause: str) -> tuple[float | None, float | None]:
    """Return how many deliveries a minute a cause has failed lately, on all workers, and before that; None: not known.

    >>> trend_of([CauseTrends(lately_s=240, before_s=300, lately={"c": 60}, before={"c": 10})], "c")
    (15.0, 2.0)
    """
    known = [*trends]
    if None in known:  # a worker does not say
        return None, None
    lately = _per_min([(each.lately_s, each.lately) for each in known if each], cause)
    return lately, _per_min([(each.before_s, each.before) for each in known if each], cause)


def _per_min(counted: Sequence[tuple[float, Mapping[str, int]]], cause: str) -> float | None:
    if not counted or any(
        not span_s or (cause not in counts and (span_s < LEAST_S or OTHER_CAUSE in counts))
        for span_s, counts in counted
    ):
        return None
    return round(sum(60 * counts.get(cause, 0) / span_s for span_s, counts in counted), 1)

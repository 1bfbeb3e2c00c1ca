"""Percentiles, and which healthy records were delivered while many others waited."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from retryapp.demo.visits import Visit

MANY_WAITING = 1_000
"""So many waiting flights count as many; where fewer ever wait, half of the most that did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Half, nearly all and all of some measurements, in milliseconds; zeros where there are none."""

    count: int
    p50: int
    p99: int
    max: int


def quantiles(values: Iterable[int]) -> Quantiles:
    """Summarise measurements by the nearest-rank method.

    Example:
        >>> quantiles([5, 1, 3])
        Quantiles(count=3, p50=3, p99=5, max=5)
    """
    ordered = sorted(values)
    if not ordered:
        return Quantiles(count=0, p50=0, p99=0, max=0)
    last = len(ordered) - 1
    rank = {share: min(last, max(0, -(-len(ordered) * share // 100) - 1)) for share in (50, 99)}
    return Quantiles(count=len(ordered), p50=ordered[rank[50]], p99=ordered[rank[99]], max=ordered[-1])


def lateness_ms(visits: Iterable[Visit], *, pauses: Sequence[tuple[int, int]] = ()) -> list[int]:
    """Return arrival minus due time of every redelivery that tells one; of a repeated run only the first counts.

    Args:
        visits: the service's log.
        pauses: spans in which partitions had no owner; what was due in them is left out, it waited for the failover.
    """
    first: dict[tuple[int, int], Visit] = {}
    for visit in visits:
        if visit.due_at_ms is not None:
            known = first.setdefault((visit.flight_id, visit.attempt), visit)
            if visit.started_ms < known.started_ms:
                first[visit.flight_id, visit.attempt] = visit
    return [
        visit.started_ms - visit.due_at_ms
        for visit in first.values()
        if visit.due_at_ms is not None and not any(start <= visit.due_at_ms <= end for start, end in pauses)
    ]


def first_visits(visits: Iterable[Visit]) -> dict[int, Visit]:
    """Return the earliest visit of each flight."""
    first: dict[int, Visit] = {}
    for visit in visits:
        known = first.get(visit.flight_id)
        if known is None or visit.started_ms < known.started_ms:
            first[visit.flight_id] = visit
    return first


def healthy_ms(
    visits: Sequence[Visit], fed_ms: Mapping[int, int], *, pauses: Sequence[tuple[int, int]] = ()
) -> list[int]:
    """Return the time from feeding to first delivery of flights that arrived while many others waited.

    Args:
        visits: the service's log.
        fed_ms: when each flight was handed to the producer, epoch milliseconds.
        pauses: spans in which a worker was dead and its partitions had no owner; flights fed in them are left out,
            because what they wait for is the failover and not the pending records.

    Returns:
        Milliseconds, in no order; empty where nothing ever waited.
    """
    arrivals = sorted(first_visits(visits).values(), key=lambda visit: visit.started_ms)
    waiting = waiting_at(visits, [visit.started_ms for visit in arrivals])
    threshold = min(MANY_WAITING, max(waiting, default=0) // 2)
    if threshold == 0:
        return []
    return [
        visit.started_ms - fed_ms[visit.flight_id]
        for visit, others in zip(arrivals, waiting, strict=True)
        if others >= threshold
        and visit.flight_id in fed_ms
        and not any(start <= fed_ms[visit.flight_id] <= end for start, end in pauses)
    ]


def pause_after(kill_ms: int, fed_ms: Mapping[int, int], partitions: Mapping[int, int], visits: Iterable[Visit]) -> int:
    """Return when every partition was served again after a kill.

    Args:
        kill_ms: when the worker was killed, epoch milliseconds.
        fed_ms: when each flight was handed to the producer.
        partitions: the main topic's partition of each flight.
        visits: the service's log.

    Returns:
        The latest of the partitions' first deliveries of a flight fed after the kill; where nothing was fed any more,
        the last of all first deliveries, or `kill_ms`.
    """
    first = first_visits(visits)
    served: dict[int, int] = {}
    for flight_id, visit in first.items():
        if fed_ms.get(flight_id, 0) > kill_ms and flight_id in partitions:
            partition = partitions[flight_id]
            served[partition] = min(visit.started_ms, served.get(partition, visit.started_ms))
    if served:
        return max(served.values())
    return max((visit.started_ms for visit in first.values() if visit.started_ms > kill_ms), default=kill_ms)


def waiting_at(visits: Iterable[Visit], moments_ms: Sequence[int]) -> list[int]:
    """Return how many flights waited for another attempt at each moment.

    A flight waits from the end of a failed visit that is to be retried until its next visit begins.

    Args:
        visits: the service's log, in any order.
        moments_ms: rising epoch milliseconds.

    Returns:
        One count a moment.
    """
    changes = [change for visit in visits for change in _changes(visit)]
    heapq.heapify(changes)
    waiting: set[int] = set()
    counts = []
    for moment in moments_ms:
        while changes and changes[0][0] <= moment:
            _, begins, flight_id = heapq.heappop(changes)
            if begins:
                waiting.add(flight_id)
            else:
                waiting.discard(flight_id)
        counts.append(len(waiting))
    return counts


def _changes(visit: Visit) -> list[tuple[int, bool, int]]:
    arrival = (visit.started_ms, False, visit.flight_id)
    return [arrival] if visit.outcome.is_final else [arrival, (visit.ended_ms, True, visit.flight_id)]

"""A running group as its workers tell it: their pages as JSON, and their metrics.

Workers are found through the group: the broker knows the members' hosts, each worker's pages are on the first free port
from a known one on, and each page names the other workers that it knows of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from retryapp.ports import PAGES_PREFIX as PREFIX
from retryapp.terminal import Group, HandlerFigures, LaneFigures, Latency

ANSWER_S: Final = 5.0
"""Longest wait for a page."""
KNOCK_S: Final = 1.0
"""Longest wait for the first page at an address where a worker may be."""
MORE_PORTS: Final = 8
"""So many ports beyond one for each member are tried."""

_ERRORS = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, OSError)


@dataclass(slots=True)
class Counters:
    """A handler's counters, summed over workers."""

    deliveries: float = 0.0
    failures: float = 0.0
    dead: dict[str, int] = field(default_factory=dict)
    lateness: dict[float, float] = field(default_factory=dict)
    """Upper bound in seconds to how many were at most so late."""

    def since(self, before: Counters) -> Counters:
        """Return what was counted since then; a counter that went back (a worker has started anew) counts from 0."""

        def gained(now: float, then: float) -> float:
            return now - then if now >= then else now

        return Counters(
            deliveries=gained(self.deliveries, before.deliveries),
            failures=gained(self.failures, before.failures),
            dead=dict(self.dead),
            lateness={bound: gained(n, before.lateness.get(bound, 0.0)) for bound, n in self.lateness.items()},
        )


def read_counters(text: str) -> dict[str, Counters]:
    """Return the counters of each handler from a worker's metrics."""
    found: dict[str, Counters] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "handler" not in sample.labels:
                continue
            counters = found.setdefault(sample.labels["handler"], Counters())
            match sample.name:
                case "retryapp_deliveries_total":
                    counters.deliveries += sample.value
                case "retryapp_failures_total":
                    counters.failures += sample.value
                case "retryapp_dead_total" if sample.value:
                    reason = sample.labels["reason"]
                    counters.dead[reason] = counters.dead.get(reason, 0) + int(sample.value)
                case "retryapp_lateness_seconds_bucket":
                    bound = float(sample.labels["le"])
                    counters.lateness[bound] = counters.lateness.get(bound, 0.0) + sample.value
    return found


def add_up(parts: Iterable[Mapping[str, Counters]]) -> dict[str, Counters]:
    """Return the sums over workers."""
    total: dict[str, Counters] = {}
    for part in parts:
        for main, counters in part.items():
            into = total.setdefault(main, Counters())
            into.deliveries += counters.deliveries
            into.failures += counters.failures
            for reason, count in counters.dead.items():
                into.dead[reason] = into.dead.get(reason, 0) + count
            for bound, number in counters.lateness.items():
                into.lateness[bound] = into.lateness.get(bound, 0.0) + number
    return total


def latency_of(buckets: Mapping[float, float]) -> Latency | None:
    """Return upper bounds of the quantiles of a histogram, in milliseconds; None where nothing was measured.

    Example:
        >>> latency_of({0.01: 90.0, 0.1: 100.0, float("inf"): 100.0})
        Latency(count=100, p50=10.0, p99=100.0, max=None, at_most=True)
    """
    bounds = sorted(buckets)
    count = buckets[bounds[-1]] if bounds else 0.0
    if not count:
        return None

    def quantile(share: float) -> float:
        return next(bound for bound in bounds if buckets[bound] >= share * count) * 1_000

    return Latency(count=int(count), p50=quantile(0.5), p99=quantile(0.99), at_most=True)


@dataclass(slots=True)
class _Told:
    """What one worker told."""

    url: str
    index: dict[str, Any]
    due: dict[str, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counters: dict[str, Counters] = field(default_factory=dict)


class Workers:
    """Asks the workers of a group, again and again."""

    def __init__(self, group: str | None, urls: Sequence[str], *, only: str | None = None) -> None:
        """Args: group: workers of others are passed over; None: any. urls: where they may be. only: main topic."""
        self.group = group
        self.urls = [url.rstrip("/").removesuffix(PREFIX) for url in urls]
        self._only = only
        self._before: dict[str, dict[str, Counters]] = {}
        self._before_ms: int | None = None

    def ask(self, now_ms: int) -> Group | None:
        """Return how the group stands; None when no worker answers."""
        return asyncio.run(self._ask(now_ms))

    async def _ask(self, now_ms: int) -> Group | None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S, connect=KNOCK_S)) as session:
            told = await self._everyone(session)
        if not told:
            return None
        self.urls = sorted({*self.urls, *(worker.url for worker in told)})
        elapsed_s = None if self._before_ms is None else max(0.001, (now_ms - self._before_ms) / 1_000)
        figures = _figures(told, self._gained(told), elapsed_s)
        self._before = {worker.url: worker.counters for worker in told}
        self._before_ms = now_ms
        return Group(
            group=self.group or told[0].index["group"] or "?",
            now_ms=now_ms,
            source="workers",
            workers=sorted(worker.url for worker in told),
            handlers=figures,
            lanes=[lane for worker in told for lane in _lanes(worker)],
        )

    def _gained(self, told: Sequence[_Told]) -> dict[str, Counters]:
        """Return what was counted since the last time; a worker that is new tells since its start."""
        return add_up(
            {
                main: counters.since(self._before.get(worker.url, {}).get(main, Counters()))
                for main, counters in worker.counters.items()
            }
            for worker in told
        )

    async def _everyone(self, session: aiohttp.ClientSession) -> list[_Told]:
        """Ask all known addresses, then those that the answers name."""
        found: dict[str, _Told] = {}
        asked: set[str] = set()
        todo = set(self.urls)
        while todo:
            asked |= todo
            answers = await asyncio.gather(*(self._worker(session, url) for url in sorted(todo)))
            found |= {worker.url: worker for worker in answers if worker is not None}
            todo = {url for worker in found.values() for url in worker.index["workers"]} - asked
        return [found[url] for url in sorted(found)]

    async def _worker(self, session: aiohttp.ClientSession, url: str) -> _Told | None:
        try:
            index = await _json(session, f"{url}{PREFIX}/")
            if self.group is not None and index["group"] != self.group:
                return None
            worker = _Told(index["url"] or url, index)
            for handler in index["handlers"]:
                main = handler["main"]
                if self._only in (None, main):
                    base = f"{url}{PREFIX}/{quote(main, safe='')}"
                    worker.due[main] = (await _json(session, f"{base}/"))["due"]
                    worker.partitions[main] = (await _json(session, f"{base}/partitions"))["partitions"]
            async with session.get(f"{url}{PREFIX}/metrics") as response:
                worker.counters = read_counters(await response.text())
        except _ERRORS:
            return None
        return worker


async def _json(session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    async with session.get(address, params={"format": "json"}, raise_for_status=True) as response:
        facts: dict[str, Any] = await response.json()
        return facts


def _figures(
    told: Sequence[_Told], gained: Mapping[str, Counters], elapsed_s: float | None
) -> tuple[HandlerFigures, ...]:
    mains = sorted({main for worker in told for main in worker.due})
    since_start = add_up(worker.counters for worker in told)
    figures = []
    for main in mains:
        mine = [h for worker in told for h in worker.index["handlers"] if h["main"] == main]
        minutes = [worker.due[main]["minute"] for worker in told if main in worker.due]
        recent, ever = gained.get(main, Counters()), since_start.get(main, Counters())
        figures.append(
            HandlerFigures(
                main=main,
                pending=sum(handler["pending"] for handler in mine),
                next_due_ms=min((h["next_due_ms"] for h in mine if h["next_due_ms"] is not None), default=None),
                due_next_minute=sum(minute["count"] for minute in minutes),
                due_is_exact=not any(minute["more"] for minute in minutes),
                dead=sum(handler["dead"] for handler in mine),
                dead_by_reason=ever.dead,
                deliveries_per_s=None if elapsed_s is None else recent.deliveries / elapsed_s,
                failures_per_s=None if elapsed_s is None else recent.failures / elapsed_s,
                lateness=latency_of(recent.lateness) or latency_of(ever.lateness),
            )
        )
    return tuple(figures)


def _lanes(worker: _Told) -> Iterable[LaneFigures]:
    for main, partitions in worker.partitions.items():
        for item in partitions:
            if item["is_here"]:
                names = ("state", "since_ms", "pending", "main_lag", "retry_lag", "redelivery_lag", "due_unfired")
                facts = {name: item[name] for name in (*names, "in_flight", "last_error", "partition")}
                yield LaneFigures(main=main, worker=worker.url, **facts)

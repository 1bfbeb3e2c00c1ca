"""A running group as its workers show it: their pages as JSON, and their metrics.

Each page names the other workers that it knows of, so one address is enough.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from retryapp.lookup.records import known_sum
from retryapp.ports import PAGES_PREFIX
from retryapp.terminal import Group, HandlerFigures, Latency

ANSWER_S: Final = 5.0
CONNECT_S: Final = 1.0
"""Timeout of the first request to an address where a worker may be."""

DELIVERIES: Final = "retryapp_deliveries_total"
FAILURES: Final = "retryapp_failures_total"
DEAD: Final = "retryapp_dead_total"
LATENESS: Final = "retryapp_lateness_seconds_bucket"
_LABELS: Final = {DELIVERIES: None, FAILURES: None, DEAD: "reason", LATENESS: "le"}
"""Metric → the label that its samples are told apart by; others are added up."""
_LANE: Final = ("state", "since_ms", "pending", "main_lag", "due", "in_flight", "last_error", "partition",
                "circuit", "circuit_cause", "circuit_since_ms", "circuits", "paused", "paused_since_ms")  # fmt: skip
_ERRORS: Final = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, OSError)

Counters = Counter[tuple[str, str]]
"""A handler's counters, by metric and label."""


def read_counters(text: str) -> dict[str, Counters]:
    """Return the counters of each handler from a worker's metrics."""
    counters: dict[str, Counters] = defaultdict(Counter)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _LABELS and "handler" in sample.labels:
                label = _LABELS[sample.name]
                key = sample.name, "" if label is None else sample.labels[label]
                counters[sample.labels["handler"]][key] += int(sample.value)
    return counters


def _gained(now: Counters, before: Counters) -> Counters:
    """Return what was counted in between; a counter that went back (its worker was restarted) counts from 0."""
    return Counter({key: n - before[key] if n >= before[key] else n for key, n in now.items()})


def latency_of(counters: Counters) -> Latency | None:
    """Return the lateness; None where nothing was measured.

    >>> latency_of(Counter({(LATENESS, "0.01"): 90, (LATENESS, "0.1"): 100, (LATENESS, "+Inf"): 100}))
    Latency(count=100, p50=10.0, p99=100.0)
    """
    buckets = sorted((float(bound), number) for (metric, bound), number in counters.items() if metric == LATENESS)
    count = buckets[-1][1] if buckets else 0
    if not count:
        return None
    p50, p99 = (next(bound for bound, number in buckets if number >= share * count) * 1_000 for share in (0.5, 0.99))
    return Latency(count=count, p50=p50, p99=p99)


@dataclass(slots=True)
class _Worker:
    """The answers of one worker; by main topic."""

    url: str
    index: dict[str, Any]
    due: dict[str, dict[str, Any]] = field(default_factory=dict)
    partitions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counters: dict[str, Counters] = field(default_factory=dict)


class Workers:
    """Asks the workers of a group repeatedly; `group` None: of any group; `only`: one main topic."""

    def __init__(self, group: str | None, urls: Sequence[str], *, only: str | None = None, token: str = "") -> None:
        self.group = group
        self.urls = [url.rstrip("/").removesuffix(PAGES_PREFIX) for url in urls]
        self._headers = dict.fromkeys(self.urls, {"Authorization": f"Bearer {token}"} if token else {})
        """By address; those that a worker names are not trusted with a token."""
        self._only = only
        self._before: dict[str, dict[str, Counters]] = {}
        self._before_ms: int | None = None

    def ask(self, now_ms: int) -> Group:
        """Return the group's figures, with rates since the last call; without workers if none answers."""
        return asyncio.run(self._ask(now_ms))

    async def _ask(self, now_ms: int) -> Group:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            workers = await self._everyone(session)
        self.urls = sorted({*self.urls, *(worker.url for worker in workers)})
        elapsed_s = None if self._before_ms is None else max(0.001, (now_ms - self._before_ms) / 1_000)
        group = Group(
            group=self.group or next((worker.index["group"] for worker in workers), None) or "?",
            now_ms=now_ms,
            workers=sorted(worker.url for worker in workers),
            handlers=self._figures(workers, elapsed_s),
            lanes=[lane for worker in workers for lane in _lanes(worker)],
            note="; ".join(f"{w.url}: {w.index['broker_silence']}" for w in workers if w.index["broker_silence"]),
        )
        if workers:
            self._before = {worker.url: worker.counters for worker in workers}
            self._before_ms = now_ms
        return group

    async def _everyone(self, session: aiohttp.ClientSession) -> list[_Worker]:
        """Ask all known addresses, then those that the answers name."""
        workers: dict[str, _Worker] = {}
        asked: set[str] = set()
        todo = set(self.urls)
        while todo:
            asked |= todo
            answers = await asyncio.gather(*(self._worker(session, url) for url in sorted(todo)))
            workers |= {worker.url: worker for worker in answers if worker is not None}
            todo = {url for worker in workers.values() for url in worker.index["workers"]} - asked
        return [workers[url] for url in sorted(workers)]

    async def _worker(self, session: aiohttp.ClientSession, url: str) -> _Worker | None:
        ask = partial(_json, session, self._headers.get(url, {}))
        try:
            index = await ask(f"{url}{PAGES_PREFIX}/")
            if self.group is not None and index["group"] != self.group:
                return None
            worker = _Worker(index["url"] or url, index)
            for handler in index["handlers"]:
                main = handler["main"]
                if self._only in (None, main):
                    base = f"{url}{PAGES_PREFIX}/{quote(main, safe='')}"
                    worker.due[main] = (await ask(f"{base}/"))["due"]
                    worker.partitions[main] = (await ask(f"{base}/partitions"))["partitions"]
            metrics = f"{url}{PAGES_PREFIX}/metrics"
            async with session.get(metrics, headers=self._headers.get(url), allow_redirects=False) as response:
                worker.counters = read_counters(await response.text())
        except _ERRORS:
            return None
        return worker

    def _figures(self, workers: Sequence[_Worker], elapsed_s: float | None) -> list[HandlerFigures]:
        figures = []
        for main in sorted({main for worker in workers for main in worker.due}):
            numbers = max(h["partitions"] for w in workers for h in w.index["handlers"] if h["main"] == main)
            # without a broker two workers may claim a partition: the newest known numbers count
            claims = [
                item for worker in workers for item in worker.partitions.get(main, ()) if item["pending"] is not None
            ]
            claims.sort(key=lambda item: inf if item["as_of_ms"] is None else item["as_of_ms"])
            places = {item["partition"]: item for item in claims}.values()
            whole = {item["partition"] for item in places if item["dead"] is not None}
            minutes = [worker.due[main]["minute"] for worker in workers if main in worker.due]
            total: Counters = Counter()
            recent: Counters = Counter()
            for worker in workers:
                counters = worker.counters.get(main, Counter())
                total.update(counters)
                recent.update(_gained(counters, self._before.get(worker.url, {}).get(main, Counter())))
            figures.append(
                HandlerFigures(
                    main=main,
                    pending=known_sum(item["pending"] for item in places),
                    next_due_ms=min((p["next_due_ms"] for p in places if p["next_due_ms"] is not None), default=None),
                    due_next_minute=known_sum(minute["count"] for minute in minutes),
                    due_is_exact=not any(minute["more"] for minute in minutes),
                    dead=known_sum(item["dead"] for item in places),
                    as_of_ms=min((item["as_of_ms"] for item in places if item["as_of_ms"] is not None), default=None),
                    unknown_partitions=[number for number in range(numbers) if number not in whole],
                    dead_by_reason={reason: n for (metric, reason), n in total.items() if metric == DEAD and n},
                    deliveries_per_s=None if elapsed_s is None else recent[DELIVERIES, ""] / elapsed_s,
                    failures_per_s=None if elapsed_s is None else recent[FAILURES, ""] / elapsed_s,
                    lateness=latency_of(recent) or latency_of(total),
                )
            )
        return figures


async def _json(session: aiohttp.ClientSession, headers: Mapping[str, str], address: str) -> dict[str, Any]:
    asked: Any = {"params": {"format": "json"}, "headers": headers, "allow_redirects": not headers}
    async with session.get(address, **asked, raise_for_status=True) as response:
        facts: dict[str, Any] = await response.json()
        return facts


def _lanes(worker: _Worker) -> Iterable[Mapping[str, Any]]:
    for main, partitions in worker.partitions.items():
        for item in partitions:
            if item["is_here"]:
                yield {"main": main, "worker": worker.url, **{name: item[name] for name in _LANE}}

"""A running group as its workers show it: their pages as JSON.

Each page names the other workers that it knows of, so one address is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from retryapp.ports import PAGES_PREFIX
from retryapp.terminal import Group

ANSWER_S: Final = 5.0
CONNECT_S: Final = 1.0
"""Timeout of the first request to an address where a worker may be."""

_LANE: Final = ("state", "since_ms", "pending", "main_lag", "due", "in_flight", "last_error", "partition",
                "circuit", "circuits", "paused")  # fmt: skip
_FIGURES: Final = ("pending", "next_due_ms", "dead", "as_of_ms", "unknown_partitions", "rates")
_ERRORS: Final = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, OSError)


@dataclass(slots=True)
class _Worker:
    """The answers of one worker; by main topic."""

    url: str
    index: dict[str, Any]
    partitions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Workers:
    """Asks the workers of a group repeatedly; `group` None: of any group; `only`: one main topic."""

    def __init__(self, group: str | None, urls: Sequence[str], *, only: str | None = None, token: str = "") -> None:
        self.group = group
        self.urls = [url.rstrip("/").removesuffix(PAGES_PREFIX) for url in urls]
        self._headers = dict.fromkeys(self.urls, {"Authorization": f"Bearer {token}"} if token else {})
        """By address; those that a worker names are not trusted with a token."""
        self._only = only

    def ask(self, now_ms: int) -> Group:
        """Return the group's figures; without workers if none answers."""
        return asyncio.run(self._ask(now_ms))

    async def _ask(self, now_ms: int) -> Group:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            workers = await self._everyone(session)
        self.urls = sorted({*self.urls, *(worker.url for worker in workers)})
        todo = workers[0].index.get("todo", []) if workers else []  # each says all that it knows of the whole group
        return Group(
            group=self.group or next((worker.index["group"] for worker in workers), None) or "?",
            now_ms=now_ms,
            workers=sorted(worker.url for worker in workers),
            handlers=self._figures(workers),
            lanes=[lane for worker in workers for lane in _lanes(worker)],
            note="; ".join(f"{w.url}: {w.index['broker_silence']}" for w in workers if w.index["broker_silence"]),
            todo=[f"{each['main']}: {each['text']}" for each in todo if self._only in (None, each["main"])],
        )

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
                    page = await ask(f"{url}{PAGES_PREFIX}/{quote(main, safe='')}/partitions")
                    worker.partitions[main] = page["partitions"]
        except _ERRORS:
            return None
        return worker

    @staticmethod
    def _figures(workers: Sequence[_Worker]) -> list[dict[str, Any]]:
        figures = []
        for main in sorted({main for worker in workers for main in worker.partitions}):
            # each worker says what it knows of the whole group; one that has no broker, or hears others not, knows less
            whole = min(
                (each["group"] for worker in workers for each in worker.index["handlers"] if each["main"] == main),
                key=lambda facts: (len(facts["unknown_partitions"]), facts["as_of_ms"] is not None),
            )
            figures.append({"main": main, **{name: whole[name] for name in _FIGURES}})
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

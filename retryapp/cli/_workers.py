"""A running group as its workers show it, by their pages as JSON, and in a terminal.

Each page names the other workers that it knows of, so one address is enough. What is not known is None, and a dash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import quote

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from retryapp.lookup.instants import length_text
from retryapp.lookup.payloads import printable
from retryapp.ports import PAGES_PREFIX

ANSWER_S: Final = 5.0
CONNECT_S: Final = 1.0
"""Timeout of the first request to an address where a worker may be."""

_LANE: Final = ("state", "since_ms", "pending", "main_lag", "due", "in_flight", "last_error",
                "last_error_ms", "partition", "circuit", "circuits", "paused")  # fmt: skip
_FIGURES: Final = ("pending", "next_due_ms", "dead", "as_of_ms", "unknown_partitions", "rates")
_ERRORS: Final = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, OSError)
"""What an address raises that does not answer, or is not of a worker."""


_STATE_STYLES: Final = {"open": "green", "opening": "yellow", "idle": "yellow", "closed": "red"}
_NUMBERS: Final = {
    "pending": "pending",
    "due": "due",
    "main lag": "main_lag",
    "in flight": "in_flight",
}
"""Heading → name of the fact of a lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One moment of a group."""

    group: str
    now_ms: int
    workers: Sequence[str]
    """Addresses of those that answered."""
    handlers: Sequence[Mapping[str, Any]]
    """Facts of each handler over all workers, as the overview has them: main, pending, next_due_ms, dead, as_of_ms,
    unknown_partitions and rates."""
    lanes: Sequence[Mapping[str, Any]]
    """Facts of each partition: main, partition, worker, state, since_ms, last_error, and those of `_NUMBERS`."""
    todo: Sequence[str] = ()
    """What needs action, the worst first."""
    note: str = ""


@dataclass(slots=True)
class _Worker:
    """The answers of one worker; by main topic."""

    url: str
    """As it calls itself."""
    asked: str
    """The address that was asked: a token is for this one, or none is needed."""
    index: dict[str, Any]
    partitions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Workers:
    """Asks the workers of a group repeatedly; `group` None: of any group; `only`: one main topic."""

    def __init__(self, group: str | None, urls: Sequence[str], *, only: str | None = None, token: str = "") -> None:
        self.group = group
        self.urls: list[str] = []
        """Addresses that are asked first: those that were given, and those of workers that have answered last."""
        self._given: list[str] = []
        self.look_at(urls)
        self._headers = dict.fromkeys(self.urls, {"Authorization": f"Bearer {token}"} if token else {})
        """By address; those that a worker names are not trusted with a token."""
        self._only = only
        self.refused: set[str] = set()
        """Addresses of pages that want a token, or another one."""

    def look_at(self, urls: Sequence[str]) -> None:
        """Ask at these addresses from now on; at the former ones, too, until a worker answers."""
        addresses = [url if "://" in url else f"http://{url}" for url in urls]
        self._given = [url.rstrip("/").removesuffix(PAGES_PREFIX) for url in addresses]
        self.urls = [*dict.fromkeys([*self._given, *self.urls])] if urls else []

    def ask(self, now_ms: int) -> Group:
        """Return the group's figures; without workers if none answers."""
        return asyncio.run(self._ask(now_ms))

    async def _ask(self, now_ms: int) -> Group:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            workers = await self._everyone(session)
        if workers:  # others are gone; where none answers, all may be back
            self.urls = sorted({*self._given, *(worker.asked for worker in workers)})
        notes = [f"{w.url}: {w.index['broker_silence']}" for w in workers if w.index.get("broker_silence")]
        notes += [
            f"{w.url} is of another version, and does not say all that is shown here"
            for w in workers
            if not all(_says_all(each) for each in w.index["handlers"])
        ]
        return Group(
            group=self.group or next((worker.index["group"] for worker in workers), None) or "?",
            now_ms=now_ms,
            workers=sorted(worker.url for worker in workers),
            handlers=self._figures(workers),
            lanes=[lane for worker in workers for lane in _lanes(worker)],
            note="; ".join(notes),
            todo=[f"{main}: {text}" for _, main, text in _todo(workers) if self._only in (None, main)],
        )

    async def _everyone(self, session: aiohttp.ClientSession) -> list[_Worker]:
        """Ask all known addresses, then those that the answers name."""
        workers: dict[str, _Worker] = {}
        asked: set[str] = set()
        todo = set(self.urls)
        self.refused.clear()  # some may be gone
        while todo:
            asked |= todo
            answers = await asyncio.gather(*(self._worker(session, url) for url in sorted(todo)))
            workers |= {worker.url: worker for worker in answers if worker is not None}
            todo = {url for worker in workers.values() for url in worker.index["workers"]} - asked - workers.keys()
        return [workers[url] for url in sorted(workers)]

    async def _worker(self, session: aiohttp.ClientSession, url: str) -> _Worker | None:
        ask = partial(_json, session, self._headers.get(url, {}))
        try:
            index = await ask(f"{url}{PAGES_PREFIX}/")
            if self.group is not None and index["group"] != self.group:
                return None
            worker = _Worker(index["url"] or url, url, index)
            for handler in index["handlers"]:
                main = handler["main"]
                if self._only in (None, main):
                    page = await ask(f"{url}{PAGES_PREFIX}/{quote(main, safe='')}/partitions?routed=1")
                    worker.partitions[main] = page["partitions"]
        except _ERRORS as error:
            if isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403):
                self.refused.add(url)
            return None
        self.refused -= {url, worker.url}
        return worker

    @staticmethod
    def _figures(workers: Sequence[_Worker]) -> list[dict[str, Any]]:
        figures = []
        for main in sorted({main for worker in workers for main in worker.partitions}):
            said = (each for worker in workers for each in worker.index["handlers"] if each["main"] == main)
            # each worker says what it knows of the whole group; one that has no broker, or hears others not, knows less
            whole = min(
                (each["group"] for each in said if _says_all(each)),
                key=lambda facts: (len(facts["unknown_partitions"]), facts["as_of_ms"] is not None),
                default=None,
            )
            if whole is not None:
                figures.append({"main": main, **{name: whole[name] for name in _FIGURES}})
        return figures


def _todo(workers: Sequence[_Worker]) -> list[tuple[int, str, str]]:
    """Return weight, main topic and sentence of what needs action, the worst first.

    A worker says all that it knows of the group: one that hears most of the others, and those that it does not hear.
    """
    if not workers:
        return []
    first = min(workers, key=lambda worker: len(worker.index.get("silent", ())))
    telling = [first, *(worker for worker in workers if worker.url in first.index.get("silent", ()))]
    todo = [(each["weight"], each["main"], each["text"]) for worker in telling for each in worker.index.get("todo", ())]
    return sorted(dict.fromkeys(todo), key=lambda each: -each[0])


async def _json(session: aiohttp.ClientSession, headers: Mapping[str, str], address: str) -> dict[str, Any]:
    asked: Any = {"params": {"format": "json"}, "headers": headers, "allow_redirects": not headers}
    async with session.get(address, **asked, raise_for_status=True) as response:
        facts: dict[str, Any] = await response.json()
        return facts


def _says_all(handler: Mapping[str, Any]) -> bool:
    """Return whether a worker has all figures of a handler; one of another version may not."""
    return set(_FIGURES) <= set(handler["group"])


def _lanes(worker: _Worker) -> Iterable[Mapping[str, Any]]:
    for main, partitions in worker.partitions.items():
        for item in partitions:
            if item["is_here"]:
                yield {"main": main, "worker": worker.url, **{name: item.get(name) for name in _LANE}}


def _plain(text: str) -> str:
    return escape(printable(text))


def group_table(group: Group) -> RenderableType:
    count = len(group.workers)
    parts: list[RenderableType] = [f"[bold]{_plain(group.group)}[/]  {count} worker{'' if count == 1 else 's'}"]
    if group.note:
        parts.append(f"[yellow]{_plain(group.note)}[/]")
    parts += [f"[red]{_plain(text)}[/]" for text in group.todo]
    for figures in group.handlers:
        parts += ["", f"[bold cyan]{_plain(figures['main'])}[/]", _figures_table(figures, group.now_ms)]
    if group.lanes:
        parts += ["", _lanes_table(group)]
    return Stack(*parts)


def _figures_table(figures: Mapping[str, Any], now_ms: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_row("waiting", f"[yellow]{_number_text(figures['pending'])}[/]{_due_text(figures, now_ms)}")
    table.add_row("dead", f"[red]{_number_text(figures['dead'])}[/]")
    if limits := _limits_text(figures, now_ms):
        table.add_row("", f"[yellow]{limits}[/]")
    if (rates := figures["rates"]) is not None:
        failures = f"[red]{rates['failures_per_min']:,.0f} failed[/]"
        table.add_row("a minute", f"{rates['deliveries_per_min']:,.0f} delivered, {failures}")
    table.add_row("late by", _late_text(rates))
    return table


def _circuit_text(lane: Mapping[str, Any]) -> str:
    paused = "[red], paused[/]" if lane.get("paused") else ""
    circuits = {"": {"state": lane.get("circuit") or "closed"}, **(lane.get("circuits") or {})}
    away = [f"{name} {each['state']}".strip() for name, each in circuits.items() if each["state"] != "closed"]
    return paused + "".join(f"[red], circuit {_plain(text)}[/]" for text in away)


def _lanes_table(group: Group) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("worker", "topic", "part", "lane", "since", *_NUMBERS):
        justify: Literal["left", "right"] = "right" if heading == "part" or heading in _NUMBERS else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    table.add_column("last error", overflow="fold")  # the one that gives way
    for lane in sorted(group.lanes, key=lambda lane: (lane["worker"], lane["main"], lane["partition"])):
        numbers = [lane.get(name) for name in _NUMBERS.values()]
        state, since_ms = lane["state"], lane.get("since_ms")
        table.add_row(
            _plain(lane["worker"].removeprefix("http://")),
            _plain(lane["main"]),
            str(lane["partition"]),
            f"[{_STATE_STYLES.get(state, 'dim')}]{_plain(state)}[/]{_circuit_text(lane)}",
            "-" if since_ms is None else length_text(max(0, group.now_ms - since_ms)),
            *("-" if number is None else f"{number:,}" for number in numbers),
            _plain(_error_text(lane, group.now_ms)),
        )
    return table


def _number_text(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _limits_text(figures: Mapping[str, Any], now_ms: int) -> str:
    """Return how old the numbers of waiting and dead records are, and what they leave out."""
    as_of_ms, count = figures["as_of_ms"], len(figures["unknown_partitions"])
    age = [] if as_of_ms is None else [f"last known {length_text(max(0, now_ms - as_of_ms))} ago"]
    return "; ".join([*age, f"without {count} partition{'s' * (count > 1)}, not known now"] if count else age)


def _due_text(figures: Mapping[str, Any], now_ms: int) -> str:
    if (due_ms := figures["next_due_ms"]) is None:
        return ""
    late_ms = now_ms - due_ms
    return f" (overdue {length_text(late_ms)})" if late_ms > 0 else f" (next due in {length_text(-late_ms)})"


def _error_text(lane: Mapping[str, Any], now_ms: int) -> str:
    """Return what closed a lane last, and when: it stays when the lane is open again."""
    error, at_ms = lane.get("last_error") or "", lane.get("last_error_ms")
    return f"{length_text(max(0, now_ms - at_ms))} ago: {error}" if error and at_ms is not None else error


def _late_text(rates: Mapping[str, Any] | None) -> str:
    if rates is None or not rates["retries"]:
        return "-"
    late_ms = rates["late_p99_ms"]
    return "p99 > 1m" if late_ms is None else f"p99 <= {length_text(round(late_ms))}"
